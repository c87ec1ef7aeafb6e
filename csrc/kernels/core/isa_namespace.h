// Every piece of code that an ISA source (*_isa.cpp) compiles stands between SO_ISA_BEGIN and SO_ISA_END, so that a
// copy of an inline function compiled for AVX-512 can never be the one that baseline code calls (the linker keeps one
// definition per name). Included from any other source, the same header lands in the inline namespace `generic`.
//
// ISA sources use no standard-library templates that emit code (vector, function, string): tests/policy reads the
// symbols of the objects and fails on any weak symbol outside the ISA's namespace.
#pragma once
#ifdef SO_ISA
#define SO_ISA_BEGIN   \
  namespace step_oracle { \
  namespace SO_ISA {
#else
#define SO_ISA_BEGIN   \
  namespace step_oracle { \
  inline namespace generic {
#endif
#define SO_ISA_END \
  }               \
  }
