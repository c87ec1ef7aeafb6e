// The compiled kernels (empty without nvcc) and their source, as bytes of the extension.
    .section .rodata
    .balign 16
    .globl step_oracle_digest_fatbin
    .hidden step_oracle_digest_fatbin
step_oracle_digest_fatbin:
    .incbin "digest.fatbin"
    .globl step_oracle_digest_fatbin_end
    .hidden step_oracle_digest_fatbin_end
step_oracle_digest_fatbin_end:
    .byte 0
    .globl step_oracle_digest_source
    .hidden step_oracle_digest_source
step_oracle_digest_source:
    .incbin "digest_all.cu"
    .byte 0
    .section .note.GNU-stack,"",%progbits
