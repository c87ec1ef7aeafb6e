// What torch's own fills give, written to stdout: the witness of the dispatch aarch64 (HostRandom.TorchOnAarch64).
// Not built here. On an aarch64 machine, or with the cross compiler, headers and libraries of torch 2.13.0's wheel:
//   aarch64-linux-gnu-g++ -std=c++20 -O1 -I torch/include torch_fills.cpp -L torch/lib -l:libtorch_cpu.so -l:libc10.so
//     -l:libgomp.so.1 -Wl,--allow-shlib-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs -o torch_fills
//   ./torch_fills | sha256sum
// Under qemu-user 7.2 on x86-64: with a preloaded cpuinfo_initialize that returns false (it reads the host's /sys), and
// empty libcudart.so.13 and libcupti.so.13.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdio>

int main() {
  auto generator = at::detail::createCPUGenerator(20261130);
  const auto put = [](const at::Tensor& t) {
    const at::Tensor dense = t.contiguous();
    std::fwrite(dense.data_ptr(), 1, static_cast<std::size_t>(dense.numel() * dense.element_size()), stdout);
  };
  const std::int64_t sizes[] = {0,  1,  2,  3,   7,   8,   9,   14,  15,  16,  17,   31,   32,   33,   47,   48,
                                63, 64, 65, 255, 256, 257, 607, 608, 623, 624, 625, 1000, 1023, 4095, 4096, 4097, 10007};
  for (auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (std::int64_t n : sizes)
      for (bool gaps : {false, true})
        for (int k = 0; k < 4; ++k) {
          at::Tensor t = gaps ? at::zeros({n, 2}, at::TensorOptions(type)).select(1, 0)
                              : at::zeros({n}, at::TensorOptions(type));
          if (k < 2)
            t.normal_(k == 0 ? 0.0 : 0.25, k == 0 ? 0.02 : 1.75, generator);
          else
            t.uniform_(k == 2 ? -0.036 : 0.1, k == 2 ? 0.036 : 0.9, generator);
          put(t);
        }
  at::Tensor wide = at::zeros({1001}, at::kDouble);
  wide.uniform_(-0.3, 0.7, generator);
  put(wide);
  at::Tensor large = at::zeros({1000003}, at::kFloat);
  large.normal_(0.0, 0.02, generator);
  put(large);
  large.uniform_(-0.05, 0.05, generator);
  put(large);
  put(generator.get_state());
}
