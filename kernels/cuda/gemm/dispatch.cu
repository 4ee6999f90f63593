// A product as it is asked for, and which kernel makes it.
#include "matmul.cuh"

using namespace matmuls;

namespace {

int check(const kernels_product &p) {
  const int64_t limit = 1 << 30;  // coordinates are int, and this leaves room for a tile past the end
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.m > limit || p.n > limit || p.k > limit) return cudaErrorInvalidValue;
  switch (p.form * 4 + p.epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE:
    case KERNELS_NN * 4 + KERNELS_RELU:
    case KERNELS_TN * 4 + KERNELS_STORE:
    case KERNELS_TN * 4 + KERNELS_ADD: return cudaSuccess;
    case KERNELS_NT * 4 + KERNELS_STORE:
    case KERNELS_NT * 4 + KERNELS_MASK: return p.order ? cudaErrorInvalidValue : cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

Args args(const kernels_product &p) {
  auto vector = [](uintptr_t operand, int64_t line, int bytes) { return operand % bytes == 0 && line % 4 == 0; };
  uintptr_t y = p.epilogue == KERNELS_MASK ? p.y : 0;
  Args a = {};
  a.c = ptr<float>(p.c), a.a = ptr<float>(p.a), a.b = ptr<float>(p.b), a.y = ptr<float>(y), a.order = ptr<int32_t>(p.order);
  a.alpha = p.alpha, a.m = int(p.m), a.n = int(p.n), a.k = int(p.k);
  a.early_a = p.early & KERNELS_EARLY_A, a.early_b = p.early & KERNELS_EARLY_B, a.early_c = p.early & KERNELS_EARLY_C;
  a.vector_a = vector(p.a, p.form == KERNELS_TN ? p.m : p.k, p.order ? 4 : 16);
  a.vector_b = vector(p.b, p.form == KERNELS_NT ? p.k : p.n, 16);
  a.vector_c = vector(p.c | y, p.n, 16);
  return a;
}

bool empty(const kernels_product &p) { return p.m == 0 || p.n == 0; }

int make(uintptr_t stream, int precision, const kernels_product &p) {
  if (empty(p)) return cudaSuccess;
  Args a = args(p);
  if (precision == KERNELS_FP32)
    return matmul_is_few_ffma(p.form, p.epilogue, a) ? matmul_few_ffma(stream, p.form, p.epilogue, a)
                                                     : matmul_ffma(stream, p.form, p.epilogue, a);
  if (device().major < 8) return cudaErrorNotSupported;
  bool three = precision == KERNELS_TF32X3;
  return matmul_is_few(p.form, p.epilogue, a) ? matmul_few(stream, p.form, p.epilogue, three, a)
                                              : matmul_tensor(stream, p.form, p.epilogue, three, a);
}

}  // namespace

int kernels_matmul(uintptr_t stream, int precision, kernels_product p) {
  if (int code = check(p)) return code;
  return make(stream, precision, p);
}

int kernels_steps(int precision, kernels_product p) {
  return !check(p) && p.form == KERNELS_NT && p.epilogue == KERNELS_MASK && precision != KERNELS_FP32 && device().major >= 8 &&
         matmul_is_step(precision == KERNELS_TF32X3, args(p));
}

int kernels_step(uintptr_t stream, int precision, kernels_product p) {
  if (int code = check(p)) return code;
  if (p.form != KERNELS_NT || p.epilogue != KERNELS_MASK) return cudaErrorInvalidValue;
  if (kernels_steps(precision, p)) return empty(p) ? cudaSuccess : matmul_step(stream, precision == KERNELS_TF32X3, args(p));
  if (int code = make(stream, precision, p)) return code;
  kernels_product step = {};
  step.c = p.b, step.a = p.y, step.b = p.a, step.m = p.n, step.n = p.k, step.k = p.m;
  step.alpha = p.alpha, step.form = KERNELS_TN, step.epilogue = KERNELS_ADD;
  return make(stream, precision, step);
}

int kernels_updates(uintptr_t stream, int precision, kernels_product_list list) {
  const kernels_product *p = list.products;
  int count = list.count;
  if (count > KERNELS_MOST_UPDATES) return cudaErrorInvalidValue;
  for (int i = 0; i < count; i++) {
    if (int code = check(p[i])) return code;
    if (p[i].form != KERNELS_TN || p[i].epilogue != KERNELS_ADD) return cudaErrorInvalidValue;
  }
  bool fp32 = precision == KERNELS_FP32;
  Args few[KERNELS_MOST_UPDATES], sums[KERNELS_MOST_UPDATES];
  int n = 0, m = 0;
  for (int i = 0; i < count; i++) {
    if (empty(p[i])) continue;
    Args a = args(p[i]);
    if (fp32 ? matmul_is_few_ffma_update(a) : device().major >= 8 && matmul_is_few(p[i].form, p[i].epilogue, a)) few[n++] = a;
    else if (!fp32 && matmul_is_sum(a)) sums[m++] = a;
    else if (int code = make(stream, precision, p[i])) return code;
  }
  if (m)
    if (int code = matmul_sums(stream, precision == KERNELS_TF32X3, sums, m)) return code;
  if (!n) return cudaSuccess;
  return fp32 ? matmul_few_ffma_updates(stream, few, n)
              : matmul_few_updates(stream, precision == KERNELS_TF32X3, few, n);
}
