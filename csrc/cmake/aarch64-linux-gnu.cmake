# Cross compilation with Debian's g++-aarch64-linux-gnu; programs run under qemu-user. Used by scripts/check_aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)  # the emulator then needs no target root
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(ZSTD_LIBRARY /usr/lib/aarch64-linux-gnu/libzstd.a CACHE FILEPATH "libzstd-dev:arm64")
execute_process(COMMAND aarch64-linux-gnu-g++ -print-file-name=libgomp.a OUTPUT_VARIABLE _gomp OUTPUT_STRIP_TRAILING_WHITESPACE)
set(OpenMP_gomp_LIBRARY ${_gomp} CACHE FILEPATH "the static one")
