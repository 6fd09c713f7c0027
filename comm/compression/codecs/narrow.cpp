// Half the bytes: float16 (IEEE 754 binary16) or bfloat16. The scale comes before the cast, and the communicator sums
// the narrow values in float32, so ranks x 60000 does not overflow; values beyond float16's range are cut to the limit
// and counted. Rounding errs by 2^-11 (float16) or 2^-8 (bfloat16) of a value at most. After Micikevicius et al.,
// "Mixed Precision Training", arXiv:1710.03740, and Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training",
// arXiv:1905.12322.
//
// float16 has few digits below 2^-14 and none below 2^-25: a gradient of 4e-8 on three ranks would never arrive. The
// rounding error of such a value stays in its error feedback and is sent once it has grown enough (in steps of 2^-24),
// so sums over steps are right. Reasons against a common scale of a bucket: a value's feedback does not depend on how
// buckets are cut; the ranks would have to agree on a scale first, by a second operation that does not overlap with
// backward; and a scale from an earlier step cuts gradients that have grown since. Sums of multiples of 2^-24 below
// 2^-14 are exact, so no error arises after the cast.
#include <algorithm>
#include <cmath>

#include "compression/codec.h"
#include "compression/kernels.h"

namespace dtrain::comm {
namespace {

constexpr float kLargestFloat16 = 65504.0f;
constexpr float kLargestBfloat16 = 3.3895314e38f;

// The error feedback of float16. It is neither read nor written where no value is small.
struct SmallValues {
  explicit SmallValues(std::span<const GradientTensor> tensors);
  void find_owing();

  Residuals residuals;
  std::vector<std::vector<std::uint8_t>> owes;  // by tensor and block: true if the residual is not all zeros

 private:
  std::span<const GradientTensor> tensors_;
};

SmallValues::SmallValues(std::span<const GradientTensor> tensors)
    : residuals(tensors, float32_tensors(tensors)), owes(tensors.size()), tensors_(tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (residuals.of(t)) owes[t].assign((tensors[t].elements + kernels::kBlock - 1) / kernels::kBlock, 0);
  }
}

void SmallValues::find_owing() {
  for (std::size_t t = 0; t < owes.size(); ++t) {
    const float* const residual = residuals.of(t);
    for (std::size_t block = 0; block < owes[t].size(); ++block) {
      const std::size_t begin = block * kernels::kBlock;
      const std::size_t end = std::min(begin + kernels::kBlock, tensors_[t].elements);
      owes[t][block] = std::any_of(residual + begin, residual + end, [](float v) { return v != 0; }) ? 1 : 0;
    }
  }
}

class NarrowExchange final : public Exchange {
 public:
  // `small`: null for bfloat16.
  NarrowExchange(CodecContext& context, SmallValues* small, const GradientBucket& bucket, double scale, float limit)
      : context_(context), small_(small), bucket_(bucket), scale_(static_cast<float>(scale)), limit_(limit) {}

  Work next() override {
    auto* const data = static_cast<float*>(bucket_.data);
    if (narrow_) {
      (small_ ? kernels::widen_float16 : kernels::widen_bfloat16)(narrow_, data, bucket_.count);
      return {};
    }
    narrow_ = context_.memory->claim<std::uint16_t>(bucket_.count);
    const std::size_t cut =
        small_ ? narrow_float16() : kernels::narrow_bfloat16(data, narrow_, bucket_.count, scale_, limit_);
    context_.statistics.saturated += static_cast<std::int64_t>(cut);
    return context_.peers.all_reduce(narrow_, bucket_.count, small_ ? DataType::kFloat16 : DataType::kBfloat16,
                                     {.bucket = bucket_.number});
  }
  bool only_local() const override { return narrow_ != nullptr; }

 private:
  // Narrows gradient by gradient, and writes zeros for the padding between them.
  std::size_t narrow_float16() {
    std::vector<std::size_t> in_order(bucket_.tensors.begin(), bucket_.tensors.end());
    const auto place = [this](std::size_t t) { return static_cast<const float*>(context_.tensors[t].data); };
    std::sort(in_order.begin(), in_order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    const auto* const first = static_cast<const float*>(bucket_.data);
    std::size_t cut = 0;
    std::uint16_t* done = narrow_;
    for (const std::size_t t : in_order) {
      std::uint16_t* const out = narrow_ + (place(t) - first);
      const std::size_t elements = context_.tensors[t].elements;
      std::fill(done, out, std::uint16_t{0});
      const kernels::Narrowed narrowed = kernels::narrow_float16(place(t), small_->residuals.of(t),
                                                                 small_->owes[t].data(), out, elements, scale_, limit_);
      cut += narrowed.cut;
      context_.statistics.underflowed += static_cast<std::int64_t>(narrowed.small);
      done = out + elements;
    }
    std::fill(done, narrow_ + bucket_.count, std::uint16_t{0});
    return cut;
  }

  CodecContext& context_;
  SmallValues* const small_;
  GradientBucket bucket_;
  float scale_;
  float limit_;
  std::uint16_t* narrow_ = nullptr;
};

class NarrowCodec final : public Codec {
 public:
  // `half`: float16, else bfloat16.
  NarrowCodec(CodecContext& context, bool half) : context_(context) {
    if (half) small_ = std::make_unique<SmallValues>(context.tensors);
    // The largest value whose sum over all ranks, rounded up, still fits.
    const float share = (half ? kLargestFloat16 : kLargestBfloat16) / static_cast<float>(context.world());
    const int digits = half ? 11 : 8;
    int exponent = 0;
    const float mantissa = std::frexp(share, &exponent);
    limit_ = std::ldexp(std::floor(std::ldexp(mantissa, digits)), exponent - digits);
  }

  std::size_t staging_bytes() const override {
    std::size_t total = 0;
    // A bucket's padding rounds each gradient up to 64 bytes of float32.
    for (const GradientTensor& tensor : context_.tensors) {
      total += CodecMemory::rounded(CodecMemory::rounded(4 * tensor.elements) / 2);
    }
    return total;
  }
  std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) override {
    return std::make_unique<NarrowExchange>(context_, small_.get(), bucket, scale, limit_);
  }
  // not_applied() need not take anything back: if all gradients are zero, a residual alone (2^-25 at most) sends zero.
  std::vector<std::pair<std::string, std::span<float>>> state() override {
    return small_ ? small_->residuals.places() : Codec::state();
  }
  void state_changed() override {
    if (small_) small_->find_owing();
  }

 private:
  CodecContext& context_;
  std::unique_ptr<SmallValues> small_;  // null: bfloat16, which has float32's range
  float limit_ = 0;
};

}  // namespace

std::unique_ptr<Codec> Fp16::make_codec(CodecContext& context) const {
  return std::make_unique<NarrowCodec>(context, true);
}

std::unique_ptr<Codec> Bf16::make_codec(CodecContext& context) const {
  return std::make_unique<NarrowCodec>(context, false);
}

}  // namespace dtrain::comm
