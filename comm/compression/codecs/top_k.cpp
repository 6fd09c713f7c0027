// Sends the `ratio` largest values of each gradient with their indices; the rest stays in the error feedback. After Aji
// and Heafield, "Sparse Communication for Distributed Gradient Descent", arXiv:1704.05021; error feedback after Stich
// et al., "Sparsified SGD with Memory", arXiv:1809.07599.
//
// The choice depends on the values alone: the largest in size (NaN before Inf before all else), and among equal values
// the first. Ranks choose different indices, so they gather each other's pairs and add them in rank order.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "compression/codec.h"
#include "compression/kernels.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

struct Pair {
  std::uint32_t place;
  float value;
};

// Returns a key whose order is that of the absolute values.
std::uint32_t key_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

// Writes the `k` largest of `values`, by index. The first pass counts the values by exponent and first digits, the
// second takes all values above the class of the k-th, and only that class is sorted.
void select_largest(const float* values, std::size_t count, std::size_t k, std::vector<std::uint32_t>& border,
                    Pair* out) {
  constexpr int kShift = 20;
  constexpr std::size_t kClasses = std::size_t{1} << (31 - kShift);
  std::array<std::array<std::uint32_t, kClasses>, 2>
      counts{};  // two, so that equal neighbours do not wait for each other
  for (std::size_t i = 0; i < count; ++i) ++counts[i & 1][key_of(values[i]) >> kShift];
  std::size_t above = 0;
  std::size_t last = kClasses - 1;
  for (; last > 0; --last) {
    const std::size_t here = counts[0][last] + counts[1][last];
    if (above + here >= k) break;
    above += here;
  }
  border.clear();
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t group = key_of(values[i]) >> kShift;
    if (group < last) continue;
    if (group == last) {
      border.push_back(static_cast<std::uint32_t>(i));
    } else {
      out[taken++] = {static_cast<std::uint32_t>(i), values[i]};
    }
  }
  const auto missing = static_cast<std::ptrdiff_t>(k - taken);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t x = key_of(values[a]);
    const std::uint32_t y = key_of(values[b]);
    return x != y ? x > y : a < b;
  };
  std::nth_element(border.begin(), border.begin() + missing - 1, border.end(), before);
  for (std::ptrdiff_t i = 0; i < missing; ++i) {
    const std::uint32_t place = border[static_cast<std::size_t>(i)];
    out[taken++] = {place, values[place]};
  }
}

class TopKCodec;

class TopKExchange final : public Exchange {
 public:
  TopKExchange(CodecContext& context, TopKCodec& codec, const GradientBucket& bucket, double scale)
      : context_(context), codec_(codec), bucket_(bucket), scale_(scale) {}
  Work next() override { return gathered_ ? decode() : encode(); }
  bool only_local() const override { return gathered_ != nullptr; }

 private:
  Work encode();
  Work decode();

  CodecContext& context_;
  TopKCodec& codec_;
  GradientBucket bucket_;
  double scale_;
  std::size_t pairs_ = 0;
  Pair* gathered_ = nullptr;
};

class TopKCodec final : public Codec {
 public:
  TopKCodec(const TopK& settings, CodecContext& context)
      : residuals(context.tensors, float32_tensors(context.tensors)), settings_(settings), context_(context) {}

  std::size_t sent_of(std::size_t tensor) const {
    const std::size_t elements = context_.tensors[tensor].elements;
    const double wanted = std::ceil(settings_.ratio * static_cast<double>(elements));
    return std::clamp<std::size_t>(static_cast<std::size_t>(wanted), std::min<std::size_t>(1, elements), elements);
  }
  std::size_t staging_bytes() const override {
    std::size_t total = 0;
    for (std::size_t t = 0; t < context_.tensors.size(); ++t) {
      total += CodecMemory::rounded(context_.world() * sent_of(t) * sizeof(Pair));
    }
    return total;
  }
  std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) override {
    return std::make_unique<TopKExchange>(context_, *this, bucket, scale);
  }
  void not_applied(std::size_t tensor) override { residuals.give_back(tensor); }
  std::vector<std::pair<std::string, std::span<float>>> state() override { return residuals.places(); }

  Residuals residuals;
  std::vector<std::uint32_t> border;  // scratch

 private:
  TopK settings_;
  CodecContext& context_;
};

Work TopKExchange::encode() {
  for (const std::size_t t : bucket_.tensors) pairs_ += codec_.sent_of(t);
  gathered_ = context_.memory->claim<Pair>(pairs_ * context_.world());
  Pair* const own = gathered_ + pairs_ * static_cast<std::size_t>(context_.peers.rank());
  const auto unit = static_cast<float>(scale_ * static_cast<double>(context_.world()));
  Pair* next = own;
  for (const std::size_t t : bucket_.tensors) {
    const GradientTensor& tensor = context_.tensors[t];
    float* const residual = codec_.residuals.of(t);
    const std::size_t k = codec_.sent_of(t);
    kernels::add_scaled(static_cast<const float*>(tensor.data), residual, tensor.elements, unit);
    if (k == 0) continue;
    select_largest(residual, tensor.elements, k, codec_.border, next);
    bool finite = true;
    for (std::size_t i = 0; i < k; ++i) {
      finite = finite && std::isfinite(next[i].value);
      residual[next[i].place] = 0;
    }
    // There may be more NaN and Inf than were sent; they must not come back in every later step.
    if (!finite) {
      std::replace_if(
          residual, residual + tensor.elements, [](float v) { return !std::isfinite(v); }, 0.0f);
    }
    next += k;
  }
  return context_.peers.all_gather(own, gathered_, pairs_ * sizeof(Pair), DataType::kUint8, bucket_.number);
}

Work TopKExchange::decode() {
  const float mean = 1.0f / static_cast<float>(context_.world());
  std::size_t first = 0;
  for (const std::size_t t : bucket_.tensors) {
    const GradientTensor& tensor = context_.tensors[t];
    auto* const data = static_cast<float*>(tensor.data);
    const std::size_t k = codec_.sent_of(t);
    std::memset(data, 0, tensor.elements * sizeof(float));
    for (std::size_t r = 0; r < context_.world(); ++r) {
      const Pair* const theirs = gathered_ + r * pairs_ + first;
      for (std::size_t i = 0; i < k; ++i) data[theirs[i].place] += mean * theirs[i].value;
    }
    first += k;
  }
  return {};
}

}  // namespace

std::unique_ptr<Codec> TopK::make_codec(CodecContext& context) const {
  if (!(ratio > 0 && ratio <= 1)) {
    throw CommError("topk: the ratio is " + std::to_string(ratio), "use a number above 0, up to 1");
  }
  return std::make_unique<TopKCodec>(*this, context);
}

}  // namespace dtrain::comm
