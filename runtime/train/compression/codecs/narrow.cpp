// float16 or bfloat16 in tensor operations; comm/compression/codecs/narrow.cpp describes them.
//
// Each rank sends the same bits as on a CPU. NCCL sums in the narrow type; the other backends sum in float32 and round
// once. With two ranks the sum has the same bits, too; with n ranks it differs by at most (n - 2) roundings of a
// partial sum, each 2^-11 (float16) or 2^-8 (bfloat16) of the partial sum.
#include <cmath>
#include <utility>

#include "compression/tensor_codec.h"

namespace dtrain::train {
namespace {

constexpr double kLeastNormalHalf = 0x1p-14;
constexpr double kRoundsToZero = 0x1p-25;  // smaller values do, too

class NarrowTensors final : public TensorCodec {
 public:
  NarrowTensors(TensorCodecContext& context, bool half) : context_(context), half_(half) {
    if (half) {
      residuals_ = context.like_flats();
      parts_ = context.parts_of(residuals_);
    }
    // The largest value whose sum over all ranks, rounded up, still fits.
    const float share = (half ? 65504.0f : 3.3895314e38f) / static_cast<float>(context.world());
    const int digits = half ? 11 : 8;
    int exponent = 0;
    const float mantissa = std::frexp(share, &exponent);
    limit_ = std::ldexp(std::floor(std::ldexp(mantissa, digits)), exponent - digits);
  }

  std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) override {
    return std::make_unique<SingleExchange<NarrowTensors>>(*this, std::move(bucket), scale);
  }
  std::vector<std::pair<std::string, at::Tensor>> state() override { return error_feedback(context_, parts_); }
  std::vector<at::Tensor> state_memory() override { return defined_of(residuals_); }

  // Returns scale * values + error feedback in the narrow type.
  at::Tensor encode(const TensorBucket& bucket, double scale) {
    at::Tensor value = bucket.values.mul(static_cast<float>(scale));
    at::Tensor residual;
    if (half_) {
      const at::Tensor alone = value.abs();
      context_.underflowed.add_(alone.le(kRoundsToZero).logical_and_(alone.gt(0)).sum());
      residual = residuals_[bucket.group].narrow(0, bucket.begin, value.numel());
      value.add_(residual);
    }
    const at::Tensor beyond = value.abs().gt(limit_).logical_and_(value.isfinite());
    context_.saturated.add_(beyond.sum());
    value = at::where(beyond, value.clamp(-limit_, limit_), value);
    at::Tensor narrow = value.to(half_ ? at::kHalf : at::kBFloat16);
    if (half_) {
      const at::Tensor keeps = value.abs().lt(kLeastNormalHalf).logical_not_();
      residual.copy_(value.sub(narrow.to(at::kFloat)).masked_fill_(keeps, 0));
    }
    return narrow;
  }

  void decode(const TensorBucket& bucket, const at::Tensor& narrow) { bucket.values.copy_(narrow); }
  comm::Work exchange(const at::Tensor& narrow, int bucket) {
    return context_.communicator.all_reduce(narrow.data_ptr(), static_cast<std::size_t>(narrow.numel()),
                                            half_ ? comm::DataType::kFloat16 : comm::DataType::kBfloat16,
                                            {.bucket = bucket});
  }

 private:
  TensorCodecContext& context_;
  const bool half_;
  float limit_ = 0;
  std::vector<at::Tensor> residuals_, parts_;  // for float16 only
};

}  // namespace

std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Fp16&) {
  return std::make_unique<NarrowTensors>(context, /*half=*/true);
}

std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Bf16&) {
  return std::make_unique<NarrowTensors>(context, /*half=*/false);
}

}  // namespace dtrain::train
