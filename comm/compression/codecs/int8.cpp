// A quarter of the bytes: blocks of 256 values share one float32 scale (the largest of them / 127), each value is
// rounded to an int8 multiple of it, and the rounding error is added to the next exchange. Block-wise scales after
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861; error feedback after Karimireddy
// et al., "Error Feedback Fixes SignSGD", arXiv:1901.09847.
//
// Sums of int8 would need wider numbers on the way, so the ranks gather each other's codes and sum them in rank order.
// A rank then receives (n-1) x 1 bytes a value; an all_reduce of float32 moves 2(n-1)/n x 4. int8 pays up to 7 ranks.

#include "compression/codec.h"
#include "compression/kernels.h"

namespace dtrain::comm {
namespace {

std::size_t blocks_of(std::size_t elements) {
  return (elements + kernels::kBlock - 1) / kernels::kBlock;
}

// The message holds all scales, then all codes.
class Int8Exchange final : public Exchange {
 public:
  Int8Exchange(CodecContext& context, Residuals& residuals, const GradientBucket& bucket, double scale)
      : context_(context), residuals_(residuals), bucket_(bucket), scale_(scale) {
    for (const std::size_t t : bucket.tensors) {
      blocks_ += blocks_of(context.tensors[t].elements);
      elements_ += context.tensors[t].elements;
    }
    bytes_ = CodecMemory::rounded(blocks_ * sizeof(float) + elements_);
  }

  Work next() override { return gathered_ ? decode() : encode(); }
  bool only_local() const override { return gathered_ != nullptr; }

 private:
  Work encode() {
    gathered_ = context_.memory->claim<std::byte>(bytes_ * context_.world());
    std::byte* const own = gathered_ + bytes_ * static_cast<std::size_t>(context_.peers.rank());
    auto* scales = reinterpret_cast<float*>(own);
    auto* codes = reinterpret_cast<std::int8_t*>(own + blocks_ * sizeof(float));
    const auto unit = static_cast<float>(scale_ * static_cast<double>(context_.world()));
    for (const std::size_t t : bucket_.tensors) {
      const GradientTensor& tensor = context_.tensors[t];
      kernels::encode_int8(static_cast<const float*>(tensor.data), residuals_.of(t), tensor.elements, unit, codes,
                           scales);
      scales += blocks_of(tensor.elements);
      codes += tensor.elements;
    }
    return context_.peers.all_gather(own, gathered_, bytes_, DataType::kUint8, bucket_.number);
  }

  Work decode() {
    std::vector<const float*> scales;
    std::vector<const std::int8_t*> codes;
    for (std::size_t r = 0; r < context_.world(); ++r) {
      const std::byte* const theirs = gathered_ + r * bytes_;
      scales.push_back(reinterpret_cast<const float*>(theirs));
      codes.push_back(reinterpret_cast<const std::int8_t*>(theirs + blocks_ * sizeof(float)));
    }
    const float mean = 1.0f / static_cast<float>(context_.world());
    for (const std::size_t t : bucket_.tensors) {
      const GradientTensor& tensor = context_.tensors[t];
      kernels::decode_int8(codes.data(), scales.data(), scales.size(), tensor.elements, mean,
                           static_cast<float*>(tensor.data));
      for (auto& s : scales) s += blocks_of(tensor.elements);
      for (auto& c : codes) c += tensor.elements;
    }
    return {};
  }

  CodecContext& context_;
  Residuals& residuals_;
  GradientBucket bucket_;
  double scale_;
  std::size_t blocks_ = 0, elements_ = 0, bytes_ = 0;
  std::byte* gathered_ = nullptr;
};

class Int8Codec final : public Codec {
 public:
  explicit Int8Codec(CodecContext& context)
      : context_(context), residuals_(context.tensors, float32_tensors(context.tensors)) {}

  std::size_t staging_bytes() const override {
    std::size_t total = 0;
    for (const GradientTensor& t : context_.tensors) {
      total += context_.world() * CodecMemory::rounded(blocks_of(t.elements) * sizeof(float) + t.elements);
    }
    return total;
  }
  std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) override {
    return std::make_unique<Int8Exchange>(context_, residuals_, bucket, scale);
  }
  void not_applied(std::size_t tensor) override { residuals_.give_back(tensor); }
  std::vector<std::pair<std::string, std::span<float>>> state() override { return residuals_.places(); }

 private:
  CodecContext& context_;
  Residuals residuals_;
};

}  // namespace

std::unique_ptr<Codec> Int8::make_codec(CodecContext& context) const {
  return std::make_unique<Int8Codec>(context);
}

}  // namespace dtrain::comm
