// Every kernel of kernels.h behind one hook, which sees a call's operands before and after it, and
// may put others in their place. How tests watch and move what kernels work on.
#ifndef DSAT_TESTS_ENGINE_BACKEND_OPERAND_KERNELS_H_
#define DSAT_TESTS_ENGINE_BACKEND_OPERAND_KERNELS_H_

#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/backend/kernels.h"

namespace dsat::engine {

class OperandKernels : public Kernels {
 public:
  explicit OperandKernels(std::unique_ptr<Kernels> inner) : inner_(std::move(inner)) {}

  void Fill(Tensor t, float value) override {
    Run({t}, [&] { inner_->Fill(t, value); });
  }
  void Cast(Tensor dst, Tensor src) override {
    Run({dst, src}, [&] { inner_->Cast(dst, src); });
  }
  void Accumulate(Tensor dst, Tensor src) override {
    Run({dst, src}, [&] { inner_->Accumulate(dst, src); });
  }
  void Scale(Tensor t, float factor) override {
    Run({t}, [&] { inner_->Scale(t, factor); });
  }
  double SumOfSquares(Tensor t) override {
    return Run({t}, [&] { return inner_->SumOfSquares(t); });
  }
  void Matmul(const MatmulArgs& given) override {
    MatmulArgs args = given;
    Run({args.a, args.b, args.c, args.bias, args.addend, args.before_gelu, args.gelu_input,
         args.column_sums},
        [&] { inner_->Matmul(args); });
  }
  void LayerNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                        int64_t N, int64_t C) override {
    Run({y, mean, rstd, x, weight, bias},
        [&] { inner_->LayerNormForward(y, mean, rstd, x, weight, bias, N, C); });
  }
  void LayerNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                         Tensor weight, Tensor mean, Tensor rstd, int64_t N, int64_t C,
                         bool accumulate_dx) override {
    Run({dx, dweight, dbias, dy, x, weight, mean, rstd}, [&] {
      inner_->LayerNormBackward(dx, dweight, dbias, dy, x, weight, mean, rstd, N, C, accumulate_dx);
    });
  }
  void RmsNormForward(Tensor y, Tensor rstd, Tensor x, Tensor weight, int64_t N, int64_t C,
                      float eps) override {
    Run({y, rstd, x, weight}, [&] { inner_->RmsNormForward(y, rstd, x, weight, N, C, eps); });
  }
  void RmsNormBackward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight, Tensor rstd,
                       int64_t N, int64_t C, bool accumulate_dx) override {
    Run({dx, dweight, dy, x, weight, rstd},
        [&] { inner_->RmsNormBackward(dx, dweight, dy, x, weight, rstd, N, C, accumulate_dx); });
  }
  void GroupNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                        const GroupNormShape& shape) override {
    Run({y, mean, rstd, x, weight, bias},
        [&] { inner_->GroupNormForward(y, mean, rstd, x, weight, bias, shape); });
  }
  void GroupNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                         Tensor weight, Tensor mean, Tensor rstd,
                         const GroupNormShape& shape) override {
    Run({dx, dweight, dbias, dy, x, weight, mean, rstd},
        [&] { inner_->GroupNormBackward(dx, dweight, dbias, dy, x, weight, mean, rstd, shape); });
  }
  void GeluForward(Tensor y, Tensor x) override {
    Run({y, x}, [&] { inner_->GeluForward(y, x); });
  }
  void GeluBackward(Tensor dx, Tensor dy, Tensor x) override {
    Run({dx, dy, x}, [&] { inner_->GeluBackward(dx, dy, x); });
  }
  void ReluForward(Tensor y, Tensor x) override {
    Run({y, x}, [&] { inner_->ReluForward(y, x); });
  }
  void ReluBackward(Tensor dx, Tensor dy, Tensor x) override {
    Run({dx, dy, x}, [&] { inner_->ReluBackward(dx, dy, x); });
  }
  void SwigluForward(Tensor y, Tensor x, int64_t N, int64_t F) override {
    Run({y, x}, [&] { inner_->SwigluForward(y, x, N, F); });
  }
  void SwigluBackward(Tensor dx, Tensor dy, Tensor x, int64_t N, int64_t F) override {
    Run({dx, dy, x}, [&] { inner_->SwigluBackward(dx, dy, x, N, F); });
  }
  void Add(Tensor y, Tensor a, Tensor b) override {
    Run({y, a, b}, [&] { inner_->Add(y, a, b); });
  }
  void EmbeddingForward(Tensor y, const int32_t* tokens, Tensor wte, Tensor wpe, int64_t B,
                        int64_t T, int64_t C) override {
    void* tokens_at = Writable(tokens);
    Run({y, wte, wpe, {tokens_at, 4 * B * T}},
        [&] { inner_->EmbeddingForward(y, static_cast<int32_t*>(tokens_at), wte, wpe, B, T, C); });
  }
  void EmbeddingBackward(Tensor dwte, Tensor dwpe, Tensor dy, const int32_t* tokens, int64_t B,
                         int64_t T, int64_t C) override {
    void* tokens_at = Writable(tokens);
    Run({dwte, dwpe, dy, {tokens_at, 4 * B * T}}, [&] {
      inner_->EmbeddingBackward(dwte, dwpe, dy, static_cast<int32_t*>(tokens_at), B, T, C);
    });
  }
  void TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T,
                    int64_t context) override {
    void* windows_at = Writable(windows);
    void* tokens_at = Writable(tokens);
    Run({{windows_at, 4 * B * T * context}, {tokens_at, 4 * B * T}}, [&] {
      inner_->TokenWindows(static_cast<int32_t*>(windows_at), static_cast<int32_t*>(tokens_at), B,
                           T, context);
    });
  }
  void RotateInPlace(Tensor x, std::span<const float> frequencies, bool negative,
                     const RotaryShape& shape) override {
    Run({x}, [&] { inner_->RotateInPlace(x, frequencies, negative, shape); });
  }
  void ConvForward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape) override {
    Run({y, x, weight}, [&] { inner_->ConvForward(y, x, weight, shape); });
  }
  void ConvInputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape) override {
    Run({dx, dy, weight}, [&] { inner_->ConvInputGrad(dx, dy, weight, shape); });
  }
  void ConvWeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape) override {
    Run({dweight, dy, x}, [&] { inner_->ConvWeightGrad(dweight, dy, x, shape); });
  }
  void MeanPoolForward(Tensor y, Tensor x, int64_t N, int64_t P, int64_t C) override {
    Run({y, x}, [&] { inner_->MeanPoolForward(y, x, N, P, C); });
  }
  void MeanPoolBackward(Tensor dx, Tensor dy, int64_t N, int64_t P, int64_t C) override {
    Run({dx, dy}, [&] { inner_->MeanPoolBackward(dx, dy, N, P, C); });
  }
  int64_t WorkspaceBytes() const override { return inner_->WorkspaceBytes(); }
  int64_t AttentionScratchBytes(const AttentionShape& shape) override {
    return inner_->AttentionScratchBytes(shape);
  }
  void AttentionForward(Tensor out, Tensor lse, Tensor qkv, Tensor scratch,
                        const AttentionShape& shape) override {
    Run({out, lse, qkv, scratch}, [&] { inner_->AttentionForward(out, lse, qkv, scratch, shape); });
  }
  void AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                         Tensor scratch, const AttentionShape& shape) override {
    Run({dqkv, dout, out, qkv, lse, scratch},
        [&] { inner_->AttentionBackward(dqkv, dout, out, qkv, lse, scratch, shape); });
  }
  double CrossEntropyInPlace(Tensor logits, const int32_t* targets, int64_t N, int64_t V,
                             int64_t V_used, float grad_scale) override {
    void* targets_at = Writable(targets);
    return Run({logits, {targets_at, 4 * N}}, [&] {
      return inner_->CrossEntropyInPlace(logits, static_cast<int32_t*>(targets_at), N, V, V_used,
                                         grad_scale);
    });
  }
  void AdamStep(const AdamArgs& given) override {
    AdamArgs args = given;
    Run({args.param, args.master, args.grad, args.m, args.v}, [&] { inner_->AdamStep(args); });
  }
  void SgdStep(const SgdArgs& given) override {
    SgdArgs args = given;
    Run({args.param, args.master, args.grad, args.momentum_buffer}, [&] { inner_->SgdStep(args); });
  }
  void AdagradStep(const AdagradArgs& given) override {
    AdagradArgs args = given;
    Run({args.param, args.master, args.grad, args.sum}, [&] { inner_->AdagradStep(args); });
  }
  void LionStep(const LionArgs& given) override {
    LionArgs args = given;
    Run({args.param, args.master, args.grad, args.m}, [&] { inner_->LionStep(args); });
  }
  LambSums LambMoments(const AdamArgs& given) override {
    AdamArgs args = given;
    return Run({args.param, args.master, args.grad, args.m, args.v},
               [&] { return inner_->LambMoments(args); });
  }
  void LambApply(const AdamArgs& given, float trust_ratio) override {
    AdamArgs args = given;
    Run({args.param, args.master, args.grad, args.m, args.v},
        [&] { inner_->LambApply(args, trust_ratio); });
  }
  void MomentumStep(const AdamArgs& given) override {
    AdamArgs args = given;
    Run({args.param, args.master, args.grad, args.m, args.v}, [&] { inner_->MomentumStep(args); });
  }
  void FrozenAdamStep(const AdamArgs& given) override {
    AdamArgs args = given;
    Run({args.param, args.master, args.grad, args.m, args.v},
        [&] { inner_->FrozenAdamStep(args); });
  }
  void CompressSigns(Tensor error, uint8_t* signs, float* scale, Tensor values) override {
    void *bits = Writable(signs), *size = Writable(scale);
    Run({error, values, {bits, values.num_elems / 8}, {size, 4}}, [&] {
      inner_->CompressSigns(error, static_cast<uint8_t*>(bits), static_cast<float*>(size), values);
    });
  }
  void DecompressSigns(Tensor values, const uint8_t* signs, const float* scale, float factor,
                       bool accumulate) override {
    void *bits = Writable(signs), *size = Writable(scale);
    Run({values, {bits, values.num_elems / 8}, {size, 4}}, [&] {
      inner_->DecompressSigns(values, static_cast<uint8_t*>(bits), static_cast<float*>(size),
                              factor, accumulate);
    });
  }

 protected:
  // Memory of a tensor, or any other; empty ones have no bytes.
  struct Operand {
    Operand(Tensor& t) : data(t.data), bytes(t.bytes()) {}
    Operand(void*& memory, int64_t num_bytes) : data(memory), bytes(num_bytes) {}
    void*& data;
    int64_t bytes;
  };
  using Operands = std::span<const Operand>;
  Kernels& inner() { return *inner_; }

 private:
  // In the order of the call's arguments, but that tensors come first.
  virtual void Enter(Operands operands) = 0;
  virtual void Leave(Operands operands) = 0;

  static void* Writable(const void* data) { return const_cast<void*>(data); }

  template <typename Call>
  std::invoke_result_t<Call> Run(std::initializer_list<Operand> operands, const Call& call) {
    const struct Scope {
      OperandKernels& kernels;
      Operands operands;
      int64_t flops_before;
      ~Scope() {
        kernels.flops_ += kernels.inner_->flops() - flops_before;
        kernels.Leave(operands);
      }
    } scope{*this, {operands.begin(), operands.size()}, inner_->flops()};
    Enter(scope.operands);
    return call();
  }

  std::unique_ptr<Kernels> inner_;
};

}  // namespace dsat::engine

#endif  // DSAT_TESTS_ENGINE_BACKEND_OPERAND_KERNELS_H_
