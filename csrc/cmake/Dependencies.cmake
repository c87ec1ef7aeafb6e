# Third-party packages: where each comes from is in README.md ("Dependencies").
if(STEP_ORACLE_PYTHON)
  find_package(Python3 COMPONENTS Interpreter Development.Module REQUIRED)
else()
  find_package(Python3 COMPONENTS Interpreter REQUIRED)  # fmt's headers are torch's
endif()
find_package(Threads REQUIRED)

# torch's wheel: headers and libraries; fmt and pybind11 come with it, so that one version of each is in the process.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import importlib.util,os; print(os.path.dirname(importlib.util.find_spec('torch').origin))"
  OUTPUT_VARIABLE TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _rc ERROR_QUIET)
if(_rc)
  message(FATAL_ERROR "torch is not installed for ${Python3_EXECUTABLE}. Run scripts/setup, or: pip install torch==2.13.0")
endif()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/deps/fmt)
file(CREATE_LINK ${TORCH_ROOT}/include/fmt ${CMAKE_BINARY_DIR}/deps/fmt/fmt SYMBOLIC)
add_library(fmt_header_only INTERFACE)
target_include_directories(fmt_header_only SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/deps/fmt)
target_compile_definitions(fmt_header_only INTERFACE FMT_HEADER_ONLY=1)

if(STEP_ORACLE_PYTHON)
  add_library(torch_python INTERFACE)
  target_include_directories(torch_python SYSTEM INTERFACE
    ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include ${Python3_INCLUDE_DIRS})
  foreach(lib c10 torch_cpu torch torch_python)
    target_link_libraries(torch_python INTERFACE ${TORCH_ROOT}/lib/lib${lib}.so)
  endforeach()
  target_link_options(torch_python INTERFACE -Wl,--disable-new-dtags)
endif()

# zstd, FlatBuffers: the distribution's packages.
find_path(ZSTD_INCLUDE zstd.h REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
add_library(zstd INTERFACE)
target_include_directories(zstd SYSTEM INTERFACE ${ZSTD_INCLUDE})
target_link_libraries(zstd INTERFACE ${ZSTD_LIBRARY})
find_program(FLATC flatc REQUIRED)
find_path(FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h REQUIRED)
add_library(flatbuffers_headers INTERFACE)
target_include_directories(flatbuffers_headers SYSTEM INTERFACE ${FLATBUFFERS_INCLUDE})

# BLAKE3: the system's libblake3 where there is one; otherwise the upstream C and assembly sources that Debian ships
# inside librust-blake3-dev (the digests are compared with PyPI's blake3 in tests).
find_package(BLAKE3 CONFIG QUIET)
if(TARGET BLAKE3::blake3)
  add_library(blake3 INTERFACE)
  target_link_libraries(blake3 INTERFACE BLAKE3::blake3)
else()
  file(GLOB _blake3_dirs ${CMAKE_SOURCE_DIR}/.deps/usr/share/cargo/registry/blake3-*/c /usr/share/cargo/registry/blake3-*/c)
  if(NOT _blake3_dirs)
    message(FATAL_ERROR "BLAKE3 not found. Run scripts/setup, or install libblake3-dev (or Debian's librust-blake3-dev).")
  endif()
  list(GET _blake3_dirs 0 BLAKE3_DIR)
  add_library(blake3 STATIC ${BLAKE3_DIR}/blake3.c ${BLAKE3_DIR}/blake3_dispatch.c ${BLAKE3_DIR}/blake3_portable.c)
  target_include_directories(blake3 SYSTEM PUBLIC ${BLAKE3_DIR})
  target_compile_options(blake3 PRIVATE -O3 -w)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    foreach(isa sse2 sse41 avx2 avx512)
      target_sources(blake3 PRIVATE ${BLAKE3_DIR}/blake3_${isa}_x86-64_unix.S)
    endforeach()
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    target_sources(blake3 PRIVATE ${BLAKE3_DIR}/blake3_neon.c)
  endif()
endif()

# step_oracle_module(_name sources...): a Python extension module that links torch, written into step_oracle/ of the
# source tree (for development: PYTHONPATH=<clone>) and installed from there by setup.py.
function(step_oracle_module name)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE torch_python fmt_header_only)
  target_compile_definitions(${name} PRIVATE TORCH_EXTENSION_NAME=${name} TORCH_API_INCLUDE_EXTENSION_H)
  target_compile_options(${name} PRIVATE -O2 -Wno-unused-parameter)
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".${Python3_SOABI}.so"
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/step_oracle)
  install(TARGETS ${name} LIBRARY DESTINATION step_oracle)
endfunction()
