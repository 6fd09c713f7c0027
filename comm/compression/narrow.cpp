// Half the bytes: float16 (IEEE 754 binary16) or bfloat16. The scale comes before the cast, and the communicator sums
// the narrow values in float32, so ranks x 60000 does not overflow; what float16 still cannot hold is cut to what it
// can and counted. There is no error feedback: rounding errs by 2^-11 (float16) or 2^-8 (bfloat16) of a value at most.
// After Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740, and Kalamkar et al., "A Study of BFLOAT16
// for Deep Learning Training", arXiv:1905.12322.
#include <cmath>

#include "compression/codec.h"
#include "compression/kernels.h"

namespace dtrain::comm {
namespace {

constexpr float kLargestFloat16 = 65504.0f;
constexpr float kLargestBfloat16 = 3.3895314e38f;

class NarrowExchange final : public Exchange {
 public:
  NarrowExchange(CodecContext& context, const GradientBucket& bucket, double scale, bool half, float limit)
      : context_(context), bucket_(bucket), scale_(static_cast<float>(scale)), half_(half), limit_(limit) {}

  Work next() override {
    auto* const data = static_cast<float*>(bucket_.data);
    if (narrow_) {
      (half_ ? kernels::widen_float16 : kernels::widen_bfloat16)(narrow_, data, bucket_.count);
      return {};
    }
    narrow_ = context_.arena->claim<std::uint16_t>(bucket_.count);
    context_.statistics.saturated += static_cast<std::int64_t>(
        (half_ ? kernels::narrow_float16 : kernels::narrow_bfloat16)(data, narrow_, bucket_.count, scale_, limit_));
    ReduceOptions options;
    options.bucket = bucket_.number;
    return context_.communicator.all_reduce(narrow_, bucket_.count, half_ ? DataType::kFloat16 : DataType::kBfloat16,
                                            options);
  }
  bool only_local() const override { return narrow_ != nullptr; }

 private:
  CodecContext& context_;
  GradientBucket bucket_;
  float scale_;
  bool half_;
  float limit_;
  std::uint16_t* narrow_ = nullptr;
};

class NarrowCodec final : public Codec {
 public:
  explicit NarrowCodec(CodecContext& context) : context_(context), half_(context.options.kind == Compression::kFp16) {
    // The largest value of which the sum over all ranks, rounded up, still fits.
    const float share = (half_ ? kLargestFloat16 : kLargestBfloat16) / static_cast<float>(context.world());
    const int digits = half_ ? 11 : 8;
    int exponent = 0;
    const float mantissa = std::frexp(share, &exponent);
    limit_ = std::ldexp(std::floor(std::ldexp(mantissa, digits)), exponent - digits);
  }

  std::size_t staging_bytes() const override {
    std::size_t total = 0;
    // A bucket's padding rounds each gradient up to 64 bytes of float32.
    for (const GradientTensor& tensor : context_.tensors) {
      total += Arena::rounded(Arena::rounded(4 * tensor.elements) / 2);
    }
    return total;
  }
  std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) override {
    return std::make_unique<NarrowExchange>(context_, bucket, scale, half_, limit_);
  }

 private:
  CodecContext& context_;
  bool half_;
  float limit_ = 0;
};

}  // namespace

std::unique_ptr<Codec> make_narrow_codec(CodecContext& context) {
  return std::make_unique<NarrowCodec>(context);
}

}  // namespace dtrain::comm
