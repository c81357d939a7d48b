// Products of float32 matrices, or of two stacks of them, by oneDNN.
//
// torch has this function for numbers of 16 bits, and leaves those of 32 to MKL without asking. It takes its
// arguments as they lie in memory, transposed or not, and writes all products of a stack in one go.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace at::native {
void mkldnn_matmul(const Tensor& left, const Tensor& right, const Tensor& result, float beta, float alpha);
}

static at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  auto shape = left.sizes().vec();
  shape.back() = right.size(-1);
  auto result = at::empty(shape, left.options());
  at::native::mkldnn_matmul(left, right, result, 0.0f, 1.0f);
  return result;
}

TORCH_LIBRARY_IMPL(axiomrl, CPU, library) {
  library.impl("product", product);
}
