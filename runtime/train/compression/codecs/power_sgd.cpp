// PowerSGD in tensor operations; comm/compression/codecs/power_sgd.cpp describes it. Products and norms are sums in
// orders of their own, so results agree with those of the other codec to about 1e-5, not in every bit.
//
// Every rank must rebuild the same bits from P and Q, also where the ranks' GPUs differ. So rank 0's orthonormal P goes
// to all ranks, and P Q^T is made of products and sums of single elements, which round alike everywhere.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <ATen/Context.h>

#include "compression/orthonormal.h"
#include "compression/tensor_codec.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/power_sgd.h"

namespace dtrain::train {

namespace {

struct Matrix {
  std::size_t place = 0;
  at::Tensor residual;  // rows x columns
  at::Tensor q;         // rank x columns: vectors, of the step before
};

// The matrices of a bucket side by side, each padded to the largest with zeros.
struct MatrixGroup {
  std::vector<std::size_t> matrices;  // numbers of the bucket's tensors that are compressed
  std::vector<std::size_t> plain;     // and of the others
  std::int64_t p_values = 0, q_values = 0, plain_values = 0;
  at::Tensor p, q;                           // matrices x rank x most rows, or most columns
  at::Tensor p_stand_ins, q_stand_ins;       // likewise
  std::vector<at::Tensor> p_parts, q_parts;  // of each matrix: rank x rows, rank x columns
};

class PowerSgdTensors final : public TensorCodec {
 public:
  PowerSgdTensors(TensorCodecContext& context, const comm::PowerSgd& settings);

  std::unique_ptr<TensorExchange> begin(TensorBucket bucket, double scale) override;
  void not_applied(std::size_t place) override {
    if (matrices_[place].q.defined()) give_back(context_, place, parts_);
  }
  std::vector<std::pair<std::string, at::Tensor>> state() override;

 private:
  friend class PowerSgdTensorsExchange;
  // Made where buckets are cut anew.
  std::shared_ptr<MatrixGroup> batch_of(const TensorBucket& bucket);

  TensorCodecContext& context_;
  const std::int64_t rank_;
  std::vector<at::Tensor> parts_;  // of each place its error feedback
  std::vector<Matrix> matrices_;   // of each place; without q: not compressed
  std::map<std::vector<std::size_t>, std::shared_ptr<MatrixGroup>> batches_;
};

class PowerSgdTensorsExchange final : public TensorExchange {
 public:
  PowerSgdTensorsExchange(PowerSgdTensors& codec, TensorBucket bucket, double scale)
      : codec_(codec),
        context_(codec.context_),
        shared_batch_(codec.batch_of(bucket)),
        batch_(*shared_batch_),
        bucket_(std::move(bucket)),
        scale_(scale) {}
  comm::Work next() override {
    const at::NoTF32Guard whole_float32;
    switch (stage_++) {
      case 0:
        return send_p();
      case 1:
        return agree_on_p();
      case 2:
        return send_q();
      default:
        rebuild();
        return {};
    }
  }

 private:
  comm::Work send_p();
  comm::Work agree_on_p();
  comm::Work send_q();
  void rebuild();

  at::Tensor values_of(std::size_t place) const {
    const TensorPlace& of = context_.places[place];
    return bucket_.values.narrow(0, of.begin - bucket_.begin, of.elements);
  }
  // The bucket's gradients that travel as they are, and their places behind P.
  std::vector<at::Tensor> plain_values() const;
  std::vector<at::Tensor> plain_parts() const;
  // Of each matrix its vectors in such a message.
  std::vector<at::Tensor> vectors_in(const at::Tensor& message, bool rows) const;
  comm::Work sum(const at::Tensor& message) {
    return context_.communicator.all_reduce(message.data_ptr(), static_cast<std::size_t>(message.numel()),
                                            comm::DataType::kFloat32, {.bucket = bucket_.number});
  }

  PowerSgdTensors& codec_;
  TensorCodecContext& context_;
  const std::shared_ptr<MatrixGroup> shared_batch_;
  MatrixGroup& batch_;
  const TensorBucket bucket_;
  const double scale_;
  int stage_ = 0;
  at::Tensor p_;  // of all matrices, then the gradients that travel as they are
  at::Tensor q_;
};

PowerSgdTensors::PowerSgdTensors(TensorCodecContext& context, const comm::PowerSgd& settings)
    : context_(context), rank_(settings.rank), parts_(context.places.size()), matrices_(context.places.size()) {
  for (std::size_t i = 0; i < context.places.size(); ++i) {
    const TensorPlace& place = context.places[i];
    const auto rows = static_cast<std::size_t>(place.rows), columns = static_cast<std::size_t>(place.columns);
    const std::size_t rank = comm::power_sgd_rank(rows, columns, settings.rank);
    if (!context.holds_float32(place.group) || rank == 0) continue;
    const auto options = context.flats[place.group].options();
    parts_[i] = at::zeros({place.elements}, options);
    const std::vector<float> first = comm::first_power_sgd_factor(context.seed, i, rank * columns);
    const auto r = static_cast<std::int64_t>(rank);
    matrices_[i] = {i, parts_[i].view({place.rows, place.columns}),
                    at::tensor(first, at::kFloat).to(options.device()).view({r, place.columns})};
  }
}

std::vector<std::pair<std::string, at::Tensor>> PowerSgdTensors::state() {
  auto state = error_feedback(context_, parts_);
  for (const Matrix& matrix : matrices_) {
    if (matrix.q.defined()) state.emplace_back("q/" + context_.places[matrix.place].name, matrix.q.view({-1}));
  }
  return state;
}

std::shared_ptr<MatrixGroup> PowerSgdTensors::batch_of(const TensorBucket& bucket) {
  const auto found = batches_.find(bucket.tensors);
  if (found != batches_.end()) return found->second;
  constexpr std::size_t kMostPlans = 64;  // of which nobody needs the older ones again
  if (batches_.size() > kMostPlans * context_.places.size()) batches_.clear();
  const auto made = std::make_shared<MatrixGroup>();
  MatrixGroup& batch = *made;
  std::int64_t most_rows = 0, most_columns = 0;
  for (const std::size_t t : bucket.tensors) {
    const TensorPlace& place = context_.places[t];
    if (!matrices_[t].q.defined()) {
      batch.plain.push_back(t);
      batch.plain_values += place.elements;
      continue;
    }
    batch.matrices.push_back(t);
    batch.p_values += rank_ * place.rows;
    batch.q_values += rank_ * place.columns;
    most_rows = std::max(most_rows, place.rows);
    most_columns = std::max(most_columns, place.columns);
  }
  const auto count = static_cast<std::int64_t>(batch.matrices.size());
  const auto options = bucket.values.options();
  batch.p = at::zeros({count, rank_, most_rows}, options);
  batch.q = at::zeros({count, rank_, most_columns}, options);
  const at::Tensor numbers = stand_ins(rank_, std::max(most_rows, most_columns));
  at::Tensor p_stand_ins = at::zeros({count, rank_, most_rows}), q_stand_ins = at::zeros({count, rank_, most_columns});
  for (std::int64_t m = 0; m < count; ++m) {
    const TensorPlace& place = context_.places[batch.matrices[static_cast<std::size_t>(m)]];
    p_stand_ins[m].narrow(1, 0, place.rows).copy_(numbers.narrow(1, 0, place.rows));
    q_stand_ins[m].narrow(1, 0, place.columns).copy_(numbers.narrow(1, 0, place.columns));
    batch.p_parts.push_back(batch.p.select(0, m).narrow(1, 0, place.rows));
    batch.q_parts.push_back(batch.q.select(0, m).narrow(1, 0, place.columns));
  }
  batch.p_stand_ins = p_stand_ins.to(options.device());
  batch.q_stand_ins = q_stand_ins.to(options.device());
  batches_.emplace(bucket.tensors, made);
  return made;
}

std::unique_ptr<TensorExchange> PowerSgdTensors::begin(TensorBucket bucket, double scale) {
  if (batch_of(bucket)->matrices.empty()) return nullptr;
  return std::make_unique<PowerSgdTensorsExchange>(*this, std::move(bucket), scale);
}

std::vector<at::Tensor> PowerSgdTensorsExchange::plain_values() const {
  std::vector<at::Tensor> parts;
  for (const std::size_t t : batch_.plain) parts.push_back(values_of(t));
  return parts;
}

std::vector<at::Tensor> PowerSgdTensorsExchange::plain_parts() const {
  std::vector<at::Tensor> parts;
  std::int64_t first = batch_.p_values;
  for (const std::size_t t : batch_.plain) {
    const std::int64_t elements = context_.places[t].elements;
    parts.push_back(p_.narrow(0, first, elements));
    first += elements;
  }
  return parts;
}

std::vector<at::Tensor> PowerSgdTensorsExchange::vectors_in(const at::Tensor& message, bool rows) const {
  std::vector<at::Tensor> vectors;
  std::int64_t first = 0;
  for (const std::size_t t : batch_.matrices) {
    const std::int64_t length = rows ? context_.places[t].rows : context_.places[t].columns;
    vectors.push_back(message.narrow(0, first, codec_.rank_ * length).view({codec_.rank_, length}));
    first += codec_.rank_ * length;
  }
  return vectors;
}

comm::Work PowerSgdTensorsExchange::send_p() {
  const auto unit = static_cast<float>(scale_ * static_cast<double>(context_.world()));
  p_ = at::empty({batch_.p_values + batch_.plain_values}, bucket_.values.options());
  std::vector<at::Tensor> residuals, scaled, factors;
  const at::Tensor all_scaled = bucket_.values.mul(unit);
  for (const std::size_t t : batch_.matrices) {
    const TensorPlace& place = context_.places[t];
    residuals.push_back(codec_.parts_[t]);
    scaled.push_back(all_scaled.narrow(0, place.begin - bucket_.begin, place.elements));
    factors.push_back(codec_.matrices_[t].q);
  }
  at::_foreach_add_(residuals, scaled);
  at::_foreach_copy_(batch_.q_parts, factors);
  orthonormalize(batch_.q, batch_.q_stand_ins);
  at::_foreach_copy_(factors, batch_.q_parts);
  auto vectors = vectors_in(p_, /*rows=*/true);
  for (std::size_t m = 0; m < vectors.size(); ++m) {
    at::mm_out(vectors[m], factors[m], codec_.matrices_[batch_.matrices[m]].residual.t());
  }
  if (!batch_.plain.empty()) at::_foreach_copy_(plain_parts(), plain_values());
  return sum(p_);
}

comm::Work PowerSgdTensorsExchange::agree_on_p() {
  if (!batch_.plain.empty()) {
    p_.narrow(0, batch_.p_values, batch_.plain_values).mul_(static_cast<float>(scale_));
    at::_foreach_copy_(plain_values(), plain_parts());
  }
  const auto vectors = vectors_in(p_, /*rows=*/true);
  at::_foreach_copy_(batch_.p_parts, vectors);
  orthonormalize(batch_.p, batch_.p_stand_ins);
  at::_foreach_copy_(vectors, batch_.p_parts);
  return context_.communicator.broadcast(p_.data_ptr(), static_cast<std::size_t>(batch_.p_values),
                                         comm::DataType::kFloat32, 0);
}

comm::Work PowerSgdTensorsExchange::send_q() {
  q_ = at::empty({batch_.q_values}, bucket_.values.options());
  const auto p = vectors_in(p_, /*rows=*/true);
  auto q = vectors_in(q_, /*rows=*/false);
  for (std::size_t m = 0; m < p.size(); ++m) {
    at::mm_out(q[m], p[m], codec_.matrices_[batch_.matrices[m]].residual);
  }
  return sum(q_);
}

void PowerSgdTensorsExchange::rebuild() {
  q_.mul_(1.0f / static_cast<float>(context_.world()));
  const auto all_p = vectors_in(p_, /*rows=*/true), all_q = vectors_in(q_, /*rows=*/false);
  for (std::size_t m = 0; m < all_p.size(); ++m) {
    Matrix& matrix = codec_.matrices_[batch_.matrices[m]];
    const at::Tensor p = all_p[m].unsqueeze(2), q = all_q[m].unsqueeze(1);
    at::Tensor product = p[0].mul(q[0]);
    for (std::int64_t v = 1; v < codec_.rank_; ++v) product.add_(p[v].mul(q[v]));
    values_of(matrix.place).copy_(product.view({-1}));
    // P is NaN throughout or nowhere, and then so is Q. The gradients then are NaN on all ranks; the next step starts
    // from the Q before and owes nothing.
    const at::Tensor finite = all_q[m].isfinite().all();
    matrix.q.copy_(at::where(finite, all_q[m], matrix.q));
    matrix.residual.copy_(at::where(finite, matrix.residual.sub(product), 0));
  }
}

}  // namespace

std::unique_ptr<TensorCodec> make_power_sgd_codec(TensorCodecContext& context, const comm::PowerSgd& settings) {
  if (settings.rank < 1) {
    throw CommError("powersgd: the rank is " + std::to_string(settings.rank), "use 1 or more");
  }
  return std::make_unique<PowerSgdTensors>(context, settings);
}

}  // namespace dtrain::train
