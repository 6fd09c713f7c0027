// A gradient as a matrix M (n x m) is sent as P (n x r) and Q (m x r): P = M Q summed over ranks and orthonormalised, Q
// = M^T P averaged over ranks, M is then P Q^T. Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization", arXiv:1905.13727. Q is kept for the next step (warm start), and the error
// of P Q^T against a rank's own M is added to that rank's next M (error feedback).
//
// PyTorch's powerSGD_hook makes the same choices: r is at most n and m; a gradient is compressed if (n + m) r is less
// than half of n m, so vectors never are. Uncompressed gradients travel with the Ps in one all_reduce.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "compression/codec.h"
#include "compression/kernels.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

double dot(const float* a, const float* b, std::size_t length) {
  std::array<double, 8> partial{};
  std::size_t i = 0;
  for (; i + 8 <= length; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      partial[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double total = 0;
  for (; i < length; ++i) total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (const double p : partial) total += p;
  return total;
}

void subtract(float* from, const float* vector, double factor, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    from[i] = static_cast<float>(static_cast<double>(from[i]) - factor * static_cast<double>(vector[i]));
  }
}

// Fills the vector with fixed numbers, here the high bits of a multiplicative sequence; any others would do.
void fill(float* vector, std::size_t length, std::size_t salt) {
  std::uint64_t x = 0x9e3779b97f4a7c15u * (salt + 1);
  for (std::size_t i = 0; i < length; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    vector[i] = static_cast<float>(static_cast<std::int32_t>(x >> 32)) / 2147483648.0f;
  }
}

// Makes columns orthonormal without changing their span: `vectors` holds `count` vectors of `length` (count <= length),
// one after the other. Modified Gram-Schmidt, each vector twice ("twice is enough", Giraud and Langou, 2003). Sums are
// in double and in the same order on every CPU, because all ranks must get the same bits from the same numbers. A
// vector that is zero or in the span of the earlier ones is replaced by another vector, so the result is orthonormal
// for every finite input. NaN and Inf become NaN everywhere.
void orthogonalize(float* vectors, std::size_t length, std::size_t count) {
  for (std::size_t v = 0; v < count; ++v) {
    float* const vector = vectors + v * length;
    for (std::size_t attempt = 0;; ++attempt) {
      const double before = dot(vector, vector, length);
      if (!std::isfinite(before)) {
        std::fill_n(vectors, count * length, std::numeric_limits<float>::quiet_NaN());
        return;
      }
      for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t u = 0; u < v; ++u) {
          const float* const earlier = vectors + u * length;
          subtract(vector, earlier, dot(vector, earlier, length), length);
        }
      }
      const double after = dot(vector, vector, length);
      // For a vector in the span of the others only float's rounding error remains, 2^-24 of its length (here squared).
      if (after > before * 1e-12 && after > 0) {
        const double factor = 1.0 / std::sqrt(after);
        for (std::size_t i = 0; i < length; ++i)
          vector[i] = static_cast<float>(static_cast<double>(vector[i]) * factor);
        break;
      }
      fill(vector, length, v + attempt * count);
    }
  }
}

struct Factor {
  std::size_t rank = 0;  // 0: not compressed
  std::vector<float> q;  // `rank` vectors of `columns`, of the previous step
};

class PowerSgdCodec final : public Codec {
 public:
  PowerSgdCodec(const PowerSgd& settings, CodecContext& context);

  std::size_t staging_bytes() const override;
  std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) override;
  void not_applied(std::size_t tensor) override { residuals.give_back(tensor); }
  std::vector<std::pair<std::string, std::span<float>>> state() override;

  std::vector<Factor> factors;  // of each tensor
  Residuals residuals;

 private:
  static std::vector<Factor> make_factors(const PowerSgd& settings, const CodecContext& context);
  static std::vector<bool> compressed(const std::vector<Factor>& factors);

  CodecContext& context_;
};

class PowerSgdExchange final : public Exchange {
 public:
  PowerSgdExchange(CodecContext& context, PowerSgdCodec& codec, const GradientBucket& bucket, double scale)
      : context_(context), codec_(codec), bucket_(bucket), scale_(scale) {
    for (const std::size_t t : bucket.tensors) {
      const GradientTensor& tensor = context.tensors[t];
      const std::size_t rank = codec.factors[t].rank;
      (rank ? p_count_ : plain_count_) += rank ? rank * tensor.rows : tensor.elements;
      q_count_ += rank * tensor.columns;
    }
  }

  Work next() override {
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
  bool only_local() const override { return stage_ == 2; }
  bool only_writes() const override { return false; }  // rebuild() makes the error feedback

 private:
  Work send_p() {
    p_ = context_.memory->claim<float>(p_count_ + plain_count_);
    q_ = context_.memory->claim<float>(q_count_);
    const double world = static_cast<double>(context_.world());
    float* p = p_;
    float* plain = p_ + p_count_;
    for (const std::size_t t : bucket_.tensors) {
      const GradientTensor& tensor = context_.tensors[t];
      Factor& factor = codec_.factors[t];
      const auto* const data = static_cast<const float*>(tensor.data);
      if (factor.rank == 0) {
        std::memcpy(plain, data, tensor.elements * sizeof(float));
        plain += tensor.elements;
        continue;
      }
      orthogonalize(factor.q.data(), tensor.columns, factor.rank);
      kernels::project(data, codec_.residuals.of(t), tensor.rows, tensor.columns, static_cast<float>(scale_ * world),
                       factor.q.data(), factor.rank, p);
      p += factor.rank * tensor.rows;
    }
    return sum(p_, p_count_ + plain_count_, 1.0);
  }

  Work send_q() {
    float* p = p_;
    float* q = q_;
    const float* plain = p_ + p_count_;
    for (const std::size_t t : bucket_.tensors) {
      const GradientTensor& tensor = context_.tensors[t];
      const std::size_t rank = codec_.factors[t].rank;
      if (rank == 0) {
        // The sum is scaled, as in a bucket without compressed gradients, so the bits do not depend on how buckets are
        // cut.
        const auto scale = static_cast<float>(scale_);
        auto* const data = static_cast<float*>(tensor.data);
        for (std::size_t i = 0; i < tensor.elements; ++i) data[i] = plain[i] * scale;
        plain += tensor.elements;
        continue;
      }
      orthogonalize(p, tensor.rows, rank);
      kernels::project_back(codec_.residuals.of(t), tensor.rows, tensor.columns, p, rank, q);
      p += rank * tensor.rows;
      q += rank * tensor.columns;
    }
    return sum(q_, q_count_, 1.0 / static_cast<double>(context_.world()));
  }

  void rebuild() {
    const float* p = p_;
    const float* q = q_;
    for (const std::size_t t : bucket_.tensors) {
      const GradientTensor& tensor = context_.tensors[t];
      Factor& factor = codec_.factors[t];
      if (factor.rank == 0) continue;
      float* const residual = codec_.residuals.of(t);
      kernels::reconstruct(residual, static_cast<float*>(tensor.data), tensor.rows, tensor.columns, p, q, factor.rank);
      // Either all of P is NaN, or none of it, and Q likewise. If they are NaN, the gradients are NaN on all ranks; the
      // next step starts from the previous Q, with no error to add.
      const std::size_t count = factor.rank * tensor.columns;
      if (std::all_of(q, q + count, [](float v) { return std::isfinite(v); })) {
        std::copy_n(q, count, factor.q.begin());
      } else {
        std::fill_n(residual, tensor.elements, 0.0f);
      }
      p += factor.rank * tensor.rows;
      q += count;
    }
  }

  Work sum(float* data, std::size_t count, double scale) {
    return context_.peers.all_reduce(data, count, DataType::kFloat32, {.post_scale = scale, .bucket = bucket_.number});
  }

  CodecContext& context_;
  PowerSgdCodec& codec_;
  GradientBucket bucket_;
  double scale_;
  std::size_t p_count_ = 0, q_count_ = 0, plain_count_ = 0;
  int stage_ = 0;
  float* p_ = nullptr;  // the Ps, then the gradients that travel as they are
  float* q_ = nullptr;
};

std::vector<Factor> PowerSgdCodec::make_factors(const PowerSgd& settings, const CodecContext& context) {
  std::vector<Factor> factors(context.tensors.size());
  for (std::size_t t = 0; t < factors.size(); ++t) {
    const GradientTensor& tensor = context.tensors[t];
    const std::size_t rank = settings.rank_of(tensor.rows, tensor.columns);
    if (tensor.type != DataType::kFloat32 || rank == 0) continue;
    factors[t].rank = rank;
    factors[t].q = PowerSgd::first_factor(context.options.seed, t, rank * tensor.columns);
  }
  return factors;
}

std::vector<bool> PowerSgdCodec::compressed(const std::vector<Factor>& factors) {
  std::vector<bool> result;
  for (const Factor& factor : factors) result.push_back(factor.rank > 0);
  return result;
}

PowerSgdCodec::PowerSgdCodec(const PowerSgd& settings, CodecContext& context)
    : factors(make_factors(settings, context)), residuals(context.tensors, compressed(factors)), context_(context) {}

std::size_t PowerSgdCodec::staging_bytes() const {
  std::size_t total = 0;
  for (std::size_t t = 0; t < factors.size(); ++t) {
    const GradientTensor& tensor = context_.tensors[t];
    const std::size_t rank = factors[t].rank;
    total += CodecMemory::rounded((rank ? rank * tensor.rows : tensor.elements) * sizeof(float));
    total += CodecMemory::rounded(rank * tensor.columns * sizeof(float));
  }
  return total;
}

std::unique_ptr<Exchange> PowerSgdCodec::begin(const GradientBucket& bucket, double scale) {
  if (std::ranges::none_of(bucket.tensors, [this](std::size_t t) { return factors[t].rank > 0; })) return nullptr;
  return std::make_unique<PowerSgdExchange>(context_, *this, bucket, scale);
}

std::vector<std::pair<std::string, std::span<float>>> PowerSgdCodec::state() {
  auto places = residuals.places();
  for (std::size_t t = 0; t < factors.size(); ++t) {
    if (factors[t].rank) places.emplace_back("q/" + context_.tensors[t].name, std::span(factors[t].q));
  }
  return places;
}

}  // namespace

// Compression would not halve the bytes of a gradient that is sent uncompressed. PyTorch's powerSGD_hook makes the same
// choice.
std::size_t PowerSgd::rank_of(std::size_t rows, std::size_t columns) const {
  constexpr std::size_t kMinimumRate = 2;
  const std::size_t possible = std::min({rows, columns, static_cast<std::size_t>(rank)});
  return (rows + columns) * possible * kMinimumRate < rows * columns ? possible : 0;
}

// Each value is a sum of twelve uniform numbers, which is exact and therefore the same on every machine.
std::vector<float> PowerSgd::first_factor(std::uint64_t seed, std::size_t tensor, std::size_t count) {
  std::vector<float> values(count);
  std::uint64_t x = seed ^ (0xd1342543de82ef95u * (tensor + 1));
  const auto next = [&x] {
    x += 0x9e3779b97f4a7c15u;
    std::uint64_t z = x;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  for (float& value : values) {
    std::int64_t sum = 0;
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t bits = next();
      sum += static_cast<std::int64_t>(bits >> 43) + static_cast<std::int64_t>((bits >> 20) & 0x1fffff);
    }
    value = static_cast<float>(sum - 6 * 0x1fffff) / 2097152.0f;
  }
  return values;
}

std::vector<float> PowerSgd::filler(std::size_t length, std::size_t salt) {
  std::vector<float> vector(length);
  fill(vector.data(), length, salt);
  return vector;
}

std::unique_ptr<Codec> PowerSgd::make_codec(CodecContext& context) const {
  if (rank < 1) throw CommError("powersgd: the rank is " + std::to_string(rank), "use 1 or more");
  return std::make_unique<PowerSgdCodec>(*this, context);
}

}  // namespace dtrain::comm
