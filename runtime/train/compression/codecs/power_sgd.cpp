// PowerSGD in tensor operations; comm/compression/codecs/power_sgd.cpp describes the codec.
//
// Error feedback of gradients of one shape lies one behind the other, in the order of the gradients. So those of a
// bucket are a batch of matrices, and each product is one operation for a shape. A device adds in another order than
// the CPU's kernels, so values agree up to rounding in float32. All ranks compute the result from the same sums with
// the same operations: on devices of one kind they get the same bits.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "compression/orthonormal.h"
#include "compression/tensor_codec.h"
#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

// The gradients of one shape in a bucket, as a batch of matrices.
struct EqualShapes {
  at::Tensor residuals;               // [gradients, rows, columns]: error feedback
  at::Tensor factors;                 // [gradients, rank, columns]: Q of the previous step
  std::vector<at::Tensor> gradients;  // [rows, columns] each
};

class PowerSgdExchange final : public TensorExchange {
 public:
  // `plain`: the gradients that are sent uncompressed.
  PowerSgdExchange(const TensorCodecContext& context, const Orthonormal& orthonormal, std::vector<EqualShapes> batches,
                   std::vector<at::Tensor> plain, int bucket, double scale)
      : context_(context),
        orthonormal_(orthonormal),
        batches_(std::move(batches)),
        plain_(std::move(plain)),
        bucket_(bucket),
        scale_(scale) {}

  comm::Work next() override {
    // Products in a narrower type would add an error that the ranks' error feedback does not know.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::NoTF32Guard no_tf32;
    switch (stage_++) {
      case 0:
        return send_p();
      case 1:
        return send_q();
      default:
        rebuild();
        return {};
    }
  }

 private:
  static constexpr std::int64_t kRows = 1, kColumns = 2;  // dimensions of a batch

  comm::Work send_p() {
    const double unit = scale_ * static_cast<double>(context_.world());
    std::vector<at::Tensor> factors;
    for (const EqualShapes& batch : batches_) {
      at::_foreach_add_(batch.residuals.unbind(), batch.gradients, unit);
      factors.push_back(batch.factors);
    }
    const std::vector<at::Tensor> q = orthonormal_(factors);
    std::int64_t plain = 0;
    for (const at::Tensor& gradient : plain_) plain += gradient.numel();
    p_ = at::empty({factor_elements(kRows) + plain}, factors.front().options());
    std::vector<at::Tensor> p = factors_in(p_, kRows);
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      factors[b].copy_(q[b]);
      at::bmm_out(p[b], q[b], batches_[b].residuals.transpose(1, 2));
    }
    if (!plain_.empty()) at::_foreach_copy_(plain_in(p_), plain_);
    return sum(p_);
  }

  comm::Work send_q() {
    if (!plain_.empty()) {
      const std::vector<at::Tensor> sums = plain_in(p_);
      at::_foreach_copy_(plain_, sums);
      at::_foreach_mul_(plain_, scale_);  // as in a bucket without compressed gradients
    }
    bases_ = orthonormal_(factors_in(p_, kRows));
    q_ = at::empty({factor_elements(kColumns)}, p_.options());
    std::vector<at::Tensor> q = factors_in(q_, kColumns);
    for (std::size_t b = 0; b < batches_.size(); ++b) at::bmm_out(q[b], bases_[b], batches_[b].residuals);
    return sum(q_);
  }

  void rebuild() {
    q_.mul_(1.0 / static_cast<double>(context_.world()));
    const std::vector<at::Tensor> q = factors_in(q_, kColumns);
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      EqualShapes& batch = batches_[b];
      const bool alone = batch.gradients.size() == 1;
      at::Tensor product = alone ? batch.gradients.front().unsqueeze(0) : at::empty_like(batch.residuals);
      at::bmm_out(product, bases_[b].transpose(1, 2), q[b]);
      if (!alone) at::_foreach_copy_(batch.gradients, product.unbind());
      // The next step after NaN starts from the previous Q, with no error to add.
      const at::Tensor infinite = q[b].isfinite().logical_not_().flatten(1).any(1).view({-1, 1, 1});
      batch.residuals.sub_(product).masked_fill_(infinite, 0);
      at::where_out(batch.factors, infinite, batch.factors, q[b]);
    }
  }

  // A message has the factors of each batch, [gradients, rank, rows or columns], then the gradients that are sent
  // uncompressed.
  std::int64_t factor_elements(std::int64_t dimension) const {
    std::int64_t elements = 0;
    for (const EqualShapes& batch : batches_) elements += elements_of(batch, dimension);
    return elements;
  }
  static std::int64_t elements_of(const EqualShapes& batch, std::int64_t dimension) {
    return batch.factors.size(0) * batch.factors.size(1) * batch.residuals.size(dimension);
  }
  std::vector<at::Tensor> factors_in(const at::Tensor& message, std::int64_t dimension) const {
    std::vector<at::Tensor> factors;
    std::int64_t begin = 0;
    for (const EqualShapes& batch : batches_) {
      const std::int64_t elements = elements_of(batch, dimension);
      factors.push_back(message.narrow(0, begin, elements)
                            .view({batch.factors.size(0), batch.factors.size(1), batch.residuals.size(dimension)}));
      begin += elements;
    }
    return factors;
  }
  std::vector<at::Tensor> plain_in(const at::Tensor& message) const {
    std::vector<at::Tensor> parts;
    std::int64_t begin = factor_elements(kRows);
    for (const at::Tensor& gradient : plain_) {
      parts.push_back(message.narrow(0, begin, gradient.numel()));
      begin += gradient.numel();
    }
    return parts;
  }

  comm::Work sum(const at::Tensor& message) const {
    return context_.communicator.all_reduce(message.data_ptr(), static_cast<std::size_t>(message.numel()),
                                            comm::DataType::kFloat32, {.bucket = bucket_});
  }

  const TensorCodecContext& context_;
  const Orthonormal& orthonormal_;
  std::vector<EqualShapes> batches_;
  std::vector<at::Tensor> plain_;
  const int bucket_;
  const double scale_;
  int stage_ = 0;
  at::Tensor p_, q_;               // the messages
  std::vector<at::Tensor> bases_;  // of each batch: P, orthonormal
};

class PowerSgdTensors final : public TensorCodec {
 public:
  PowerSgdTensors(TensorCodecContext& context, const comm::PowerSgd& settings)
      : context_(context),
        // A compressed gradient has more rows and columns than this: with fewer, its factors would not be half of it.
        rank_(settings.rank),
        orthonormal_(rank_, context.saturated.device()),
        spots_(context.places.size()) {
    find_shapes(settings);
    for (Shape& shape : shapes_) allocate(shape);
    for (std::size_t i = 0; i < context.places.size(); ++i) {
      parts_.push_back(is_compressed(i) ? of_place(shape_of(i).residuals, i) : at::Tensor());
    }
  }

  std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) override {
    std::vector<std::vector<at::Tensor>> gradients(shapes_.size());
    std::vector<std::int64_t> first(shapes_.size());
    std::vector<at::Tensor> plain;
    for (const std::size_t t : bucket.tensors) {
      const TensorPlace& place = context_.places[t];
      const at::Tensor values = bucket.values.narrow(0, place.begin - bucket.begin, place.elements);
      if (!is_compressed(t)) {
        plain.push_back(values);
        continue;
      }
      auto& of_shape = gradients[spots_[t].shape];
      if (of_shape.empty()) first[spots_[t].shape] = spots_[t].index;
      of_shape.push_back(values.view({place.rows, place.columns}));
    }
    std::vector<EqualShapes> batches;
    for (std::size_t s = 0; s < shapes_.size(); ++s) {
      if (gradients[s].empty()) continue;
      const auto count = static_cast<std::int64_t>(gradients[s].size());
      batches.push_back({shapes_[s].residuals.narrow(0, first[s], count), shapes_[s].factors.narrow(0, first[s], count),
                         std::move(gradients[s])});
    }
    if (batches.empty()) return nullptr;
    return std::make_unique<PowerSgdExchange>(context_, orthonormal_, std::move(batches), std::move(plain),
                                              bucket.number, scale);
  }

  void not_applied(std::size_t place) override { give_back(context_, place, parts_); }

  std::vector<std::pair<std::string, at::Tensor>> state() override {
    auto state = error_feedback(context_, parts_);
    for (std::size_t i = 0; i < context_.places.size(); ++i) {
      if (is_compressed(i)) state.emplace_back("q/" + context_.places[i].name, of_place(shape_of(i).factors, i));
    }
    return state;
  }
  std::vector<at::Tensor> state_memory() override {
    std::vector<at::Tensor> memory;
    for (const Shape& shape : shapes_) memory.insert(memory.end(), {shape.residuals, shape.factors});
    return memory;
  }

 private:
  // All compressed gradients of one shape, in the order of memory.
  struct Shape {
    std::vector<std::size_t> places;
    at::Tensor residuals, factors;  // as in EqualShapes
  };
  struct Spot {
    std::size_t shape = 0;
    std::int64_t index = -1;  // among the shape's gradients; below 0: the gradient is sent uncompressed
  };

  bool is_compressed(std::size_t place) const { return spots_[place].index >= 0; }
  const Shape& shape_of(std::size_t place) const { return shapes_[spots_[place].shape]; }
  at::Tensor of_place(const at::Tensor& of_shape, std::size_t place) const {
    return of_shape.select(0, spots_[place].index).view({-1});
  }

  void find_shapes(const comm::PowerSgd& settings) {
    std::vector<std::size_t> order(context_.places.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const TensorPlace &one = context_.places[a], &other = context_.places[b];
      return std::tie(one.group, one.begin) < std::tie(other.group, other.begin);
    });
    std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> shape_of_sizes;
    for (const std::size_t t : order) {
      const TensorPlace& place = context_.places[t];
      const auto rows = static_cast<std::size_t>(place.rows), columns = static_cast<std::size_t>(place.columns);
      if (!context_.holds_float32(place.group) || settings.rank_of(rows, columns) == 0) continue;
      const std::size_t s = shape_of_sizes.try_emplace({place.rows, place.columns}, shapes_.size()).first->second;
      if (s == shapes_.size()) shapes_.emplace_back();
      spots_[t] = {s, static_cast<std::int64_t>(shapes_[s].places.size())};
      shapes_[s].places.push_back(t);
    }
  }

  void allocate(Shape& shape) {
    const TensorPlace& place = context_.places[shape.places.front()];
    const auto gradients = static_cast<std::int64_t>(shape.places.size());
    const at::TensorOptions options = context_.flats[place.group].options();
    shape.residuals = at::zeros({gradients, place.rows, place.columns}, options);
    const std::int64_t elements = rank_ * place.columns;
    const at::Tensor factors = at::empty({gradients, rank_, place.columns}, at::kFloat);
    for (std::size_t i = 0; i < shape.places.size(); ++i) {
      const auto first =
          comm::PowerSgd::first_factor(context_.seed, shape.places[i], static_cast<std::size_t>(elements));
      std::copy(first.begin(), first.end(),
                factors.mutable_data_ptr<float>() + static_cast<std::int64_t>(i) * elements);
    }
    shape.factors = factors.to(options.device());
    orthonormal_.add_length(place.rows);
    orthonormal_.add_length(place.columns);
  }

  TensorCodecContext& context_;
  const std::int64_t rank_;
  Orthonormal orthonormal_;
  std::vector<Shape> shapes_;
  std::vector<Spot> spots_;  // of each place
  std::vector<at::Tensor> parts_;
};

}  // namespace

std::unique_ptr<TensorCodec> make_tensor_form(TensorCodecContext& context, const comm::PowerSgd& settings) {
  if (settings.rank < 1) throw CommError("powersgd: the rank is " + std::to_string(settings.rank), "use 1 or more");
  return std::make_unique<PowerSgdTensors>(context, settings);
}

}  // namespace dtrain::train
