// int8 with one scale per block, in tensor operations; comm/compression/codecs/int8.cpp describes the codec. The
// results have the same bits: IEEE 754 defines every operation, and their order is the same. Here a gradient's last
// block is sent whole, so messages are a few bytes longer.
#include <algorithm>
#include <limits>
#include <utility>

#include "compression/tensor_codec.h"

namespace dtrain::train {
namespace {

constexpr std::int64_t kBlockValues = 256;
constexpr std::int64_t kScaleBytes = sizeof(float);
constexpr double kLeastOfBlock = 1e-30;  // smaller blocks wait in the error feedback: a reciprocal would overflow

std::int64_t blocks_for(std::int64_t elements) {
  return (elements + kBlockValues - 1) / kBlockValues;
}

class Int8Tensors final : public TensorCodec {
 public:
  explicit Int8Tensors(TensorCodecContext& context) : context_(context), first_block_(context.places.size()) {
    std::vector<std::vector<std::size_t>> of_group(context.flats.size());
    for (std::size_t i = 0; i < context.places.size(); ++i) of_group[context.places[i].group].push_back(i);
    for (std::size_t g = 0; g < of_group.size(); ++g) {
      auto& places = of_group[g];
      std::sort(places.begin(), places.end(),
                [&](std::size_t a, std::size_t b) { return context.places[a].begin < context.places[b].begin; });
      std::int64_t blocks = 0;
      for (const std::size_t place : places) {
        first_block_[place] = blocks;
        blocks += blocks_for(context.places[place].elements);
      }
      residuals_.push_back(context.holds_float32(g) ? at::zeros({blocks * kBlockValues}, context.flats[g].options())
                                                    : at::Tensor());
      if (residuals_.back().defined()) most_ = at::full({}, 127, context.flats[g].options());
    }
    for (std::size_t i = 0; i < context.places.size(); ++i) {
      const at::Tensor& residual = residuals_[context.places[i].group];
      parts_.push_back(residual.defined()
                           ? residual.narrow(0, first_block_[i] * kBlockValues, context.places[i].elements)
                           : at::Tensor());
    }
  }

  std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) override {
    return std::make_unique<SingleExchange<Int8Tensors>>(*this, std::move(bucket), scale);
  }

  void not_applied(std::size_t place) override { give_back(context_, place, parts_); }
  std::vector<std::pair<std::string, at::Tensor>> state() override { return error_feedback(context_, parts_); }
  std::vector<at::Tensor> state_memory() override { return defined_of(residuals_); }

  // Returns a row for each rank: the scales of all blocks, then their codes. Only this rank's row is filled.
  at::Tensor encode(const TensorBucket& bucket, double scale) {
    const std::int64_t blocks = blocks_of(bucket);
    const auto unit = static_cast<float>(scale * static_cast<double>(context_.world()));
    const at::Tensor flat =
        residuals_[bucket.group].narrow(0, first_block(bucket) * kBlockValues, blocks * kBlockValues);
    at::_foreach_add_(parts_of_blocks(bucket, flat), parts_of_values(bucket, bucket.values.mul(unit)));
    const at::Tensor values = flat.view({blocks, kBlockValues});
    const at::Tensor largest = values.abs().amax({1}, /*keepdim=*/true);
    const at::Tensor infinite = largest.isfinite().logical_not_();
    const at::Tensor unused = largest.ge(kLeastOfBlock).logical_not_().logical_or_(infinite);
    const at::Tensor scales = largest.div(most_);
    const at::Tensor codes = values.mul(most_.div(largest)).round_().masked_fill_(unused, 0);
    at::Tensor gathered =
        at::empty({context_.world(), blocks * (kScaleBytes + kBlockValues)}, bucket.values.options().dtype(at::kByte));
    const at::Tensor own = gathered.select(0, context_.rank());
    constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
    scales_in(own, blocks).copy_(scales.masked_fill(unused, 0).masked_fill_(infinite, kNoNumber));
    codes_in(own, blocks).copy_(codes);
    values.copy_(values.sub(codes.mul(scales)).masked_fill_(infinite, 0));
    return gathered;
  }

  void decode(const TensorBucket& bucket, const at::Tensor& gathered) {
    const std::int64_t blocks = blocks_of(bucket);
    at::Tensor sum;
    for (std::int64_t r = 0; r < context_.world(); ++r) {
      const at::Tensor message = gathered.select(0, r);
      const at::Tensor values = codes_in(message, blocks).to(at::kFloat).mul_(scales_in(message, blocks));
      if (sum.defined()) {
        sum.add_(values);
      } else {
        sum = values;
      }
    }
    sum.mul_(1.0f / static_cast<float>(context_.world()));
    at::_foreach_copy_(parts_of_values(bucket, bucket.values), parts_of_blocks(bucket, sum.view({-1})));
  }

  comm::Work exchange(const at::Tensor& gathered, int bucket) { return context_.gather(gathered, bucket); }

 private:
  // The blocks of a bucket's tensors are adjacent.
  std::int64_t first_block(const TensorBucket& bucket) const { return first_block_[bucket.tensors.front()]; }
  std::int64_t blocks_of(const TensorBucket& bucket) const {
    const std::size_t last = bucket.tensors.back();
    return first_block_[last] + blocks_for(context_.places[last].elements) - first_block(bucket);
  }

  // Returns the part of `blocks` that belongs to each of the bucket's tensors.
  std::vector<at::Tensor> parts_of_blocks(const TensorBucket& bucket, const at::Tensor& blocks) const {
    std::vector<at::Tensor> parts;
    for (const std::size_t t : bucket.tensors) {
      parts.push_back(
          blocks.narrow(0, (first_block_[t] - first_block(bucket)) * kBlockValues, context_.places[t].elements));
    }
    return parts;
  }

  std::vector<at::Tensor> parts_of_values(const TensorBucket& bucket, const at::Tensor& values) const {
    std::vector<at::Tensor> parts;
    for (const std::size_t t : bucket.tensors) {
      parts.push_back(values.narrow(0, context_.places[t].begin - bucket.begin, context_.places[t].elements));
    }
    return parts;
  }

  static at::Tensor scales_in(const at::Tensor& message, std::int64_t blocks) {
    return message.narrow(0, 0, blocks * kScaleBytes).view(at::kFloat).view({blocks, 1});
  }
  static at::Tensor codes_in(const at::Tensor& message, std::int64_t blocks) {
    return message.narrow(0, blocks * kScaleBytes, blocks * kBlockValues).view(at::kChar).view({blocks, kBlockValues});
  }

  TensorCodecContext& context_;
  std::vector<std::int64_t> first_block_;  // index of each place's first block in its group
  std::vector<at::Tensor> residuals_;      // of each group, in blocks; zeros after a gradient's end
  std::vector<at::Tensor> parts_;
  at::Tensor most_;  // 127, on the device: libtorch turns a division by a host number into a product
};

}  // namespace

std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::Int8&) {
  return std::make_unique<Int8Tensors>(context);
}

}  // namespace dtrain::train
