// What the instruction sets provide for col2im: rows [begin, end) of the image, planes x height of them.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/isa_body.h"
#include "csrc/kernels/indexing/windows.h"

namespace step_oracle {

struct WindowsBody {
  void (*col2im)(const indexing::Windows& w, DType type, const void* columns, void* image, std::int64_t begin,
                 std::int64_t end);
};
SO_DECLARE_BODY(WindowsBody, windows_body)

}  // namespace step_oracle
