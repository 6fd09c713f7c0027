// Top-k in tensor operations; comm/compression/codecs/top_k.cpp describes the codec. The results have the same bits,
// unless several values are as large as the smallest that is sent: then libtorch chooses among them.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "compression/tensor_codec.h"
#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

class TopKTensors final : public TensorCodec {
 public:
  TopKTensors(TensorCodecContext& context, const comm::TopK& settings)
      : context_(context),
        settings_(settings),
        residuals_(context.like_flats()),
        parts_(context.parts_of(residuals_)) {}

  std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) override {
    return std::make_unique<SingleExchange<TopKTensors>>(*this, std::move(bucket), scale);
  }

  void not_applied(std::size_t place) override { give_back(context_, place, parts_); }
  std::vector<std::pair<std::string, at::Tensor>> state() override { return error_feedback(context_, parts_); }
  std::vector<at::Tensor> state_memory() override { return defined_of(residuals_); }

  // Returns a row for each rank: the values, then their places in the bucket as int32. Only this rank's row is filled.
  at::Tensor encode(const TensorBucket& bucket, double scale) {
    const auto unit = static_cast<float>(scale * static_cast<double>(context_.world()));
    const at::Tensor residual = residuals_[bucket.group].narrow(0, bucket.begin, bucket.values.numel());
    residual.add_(bucket.values.mul(unit));
    const at::Tensor sizes = residual.abs();
    std::vector<at::Tensor> places;
    for (const std::size_t t : bucket.tensors) {
      const std::int64_t k = sent_of(t);
      const std::int64_t first = context_.places[t].begin - bucket.begin;
      if (k == 0) continue;
      const at::Tensor of_tensor = sizes.narrow(0, first, context_.places[t].elements);
      places.push_back(std::get<1>(of_tensor.topk(k, 0, /*largest=*/true, /*sorted=*/false)).add_(first));
    }
    const at::Tensor all = places.empty() ? at::empty({0}, residual.options().dtype(at::kLong)) : at::cat(places);
    at::Tensor gathered = at::empty({context_.world(), 2 * all.numel()}, residual.options());
    const at::Tensor own = gathered.select(0, context_.rank());
    own.narrow(0, 0, all.numel()).copy_(residual.gather(0, all));
    own.narrow(0, all.numel(), all.numel()).view(at::kInt).copy_(all);
    residual.index_fill_(0, all, 0);
    // More values may be non-finite than were sent; they must not return in every later step.
    residual.masked_fill_(residual.isfinite().logical_not_(), 0);
    return gathered;
  }

  void decode(const TensorBucket& bucket, const at::Tensor& gathered) const {
    const float mean = 1.0f / static_cast<float>(context_.world());
    const std::int64_t count = gathered.size(1) / 2;
    bucket.values.zero_();
    for (std::int64_t r = 0; r < context_.world(); ++r) {
      const at::Tensor message = gathered.select(0, r);
      // A rank's places are distinct, so additions happen in the order of the ranks.
      bucket.values.scatter_add_(0, message.narrow(0, count, count).view(at::kInt).to(at::kLong),
                                 message.narrow(0, 0, count).mul(mean));
    }
  }

  comm::Work exchange(const at::Tensor& gathered, int bucket) { return context_.gather(gathered, bucket); }

 private:
  std::int64_t sent_of(std::size_t place) const {
    const std::int64_t elements = context_.places[place].elements;
    const double wanted = std::ceil(settings_.ratio * static_cast<double>(elements));
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted), std::min<std::int64_t>(1, elements), elements);
  }

  TensorCodecContext& context_;
  const comm::TopK settings_;
  std::vector<at::Tensor> residuals_, parts_;
};

}  // namespace

std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::TopK& settings) {
  if (!(settings.ratio > 0 && settings.ratio <= 1)) {
    throw CommError("topk: the ratio is " + std::to_string(settings.ratio), "use a number above 0, up to 1");
  }
  return std::make_unique<TopKTensors>(context, settings);
}

}  // namespace dtrain::train
