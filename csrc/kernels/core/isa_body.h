// Declaring and selecting per-ISA tables of function pointers:
//   <family>_body.h   struct GemmBody { void (*fp32_chain)(...); };  SO_DECLARE_BODY(GemmBody, gemm_body)
//   <family>_isa.cpp  SO_ISA_BEGIN  extern const GemmBody gemm_body = {&fp32_chain};  SO_ISA_END
//   <family>.cpp      SO_BODY(gemm_body).fp32_chain(...)
#pragma once
#include "csrc/kernels/core/isa.h"

// SO_DECLARE_BODY stands inside namespace step_oracle, after the definition of the Body struct.
#if defined(__x86_64__)
#define SO_DECLARE_BODY(Body, name)               \
  namespace baseline { extern const Body name; }  \
  namespace avx2 { extern const Body name; }      \
  namespace avx512 { extern const Body name; }
#define SO_BODY(name)                                                                     \
  (*[]() {                                                                                \
    switch (::step_oracle::active_isa()) {                                                \
      case ::step_oracle::Isa::avx512: return &::step_oracle::avx512::name;               \
      case ::step_oracle::Isa::avx2: return &::step_oracle::avx2::name;                   \
      default: return &::step_oracle::baseline::name;                                     \
    }                                                                                     \
  }())
#elif defined(__aarch64__)
#define SO_DECLARE_BODY(Body, name)               \
  namespace baseline { extern const Body name; }  \
  namespace neon { extern const Body name; }
#define SO_BODY(name)                                                                     \
  (*[]() {                                                                                \
    switch (::step_oracle::active_isa()) {                                                \
      case ::step_oracle::Isa::neon: return &::step_oracle::neon::name;                   \
      default: return &::step_oracle::baseline::name;                                     \
    }                                                                                     \
  }())
#else
#define SO_DECLARE_BODY(Body, name) \
  namespace baseline { extern const Body name; }
#define SO_BODY(name) (::step_oracle::baseline::name)
#endif
