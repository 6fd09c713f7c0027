// Every codec against the plainest way to compute the same, over random models, values, buckets and numbers of ranks:
// bit by bit where the codec's arithmetic is a formula, and by what must be conserved where it is not (powersgd). Every
// rank computes all ranks' part of the reference. Seeded.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "dtrain/comm/compression.h"
#include "flat_gradients.h"
#include "harness/elements.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using Floats = std::vector<float>;

// One tensor's gradient and error feedback, by rank.
struct ReferenceTensor {
  std::vector<Floats> gradients, residuals;
  Floats result;
};

struct ReferenceScales {
  double scale;
  std::size_t world;
  float whole() const { return static_cast<float>(scale); }
  // What the codecs with error feedback take a gradient in.
  float unit() const { return static_cast<float>(scale * static_cast<double>(world)); }
  float mean() const { return 1.0f / static_cast<float>(world); }
};

float narrowed(DataType type, float value) {
  return static_cast<float>(test::decode_narrow(type, test::encode_narrow(type, static_cast<double>(value))));
}

void reference_plain(ReferenceTensor& tensor, const ReferenceScales& s) {
  for (std::size_t i = 0; i < tensor.result.size(); ++i) {
    float sum = tensor.gradients[0][i];
    for (std::size_t r = 1; r < s.world; ++r) sum += tensor.gradients[r][i];
    tensor.result[i] = sum * s.whole();
  }
}

void reference_narrow(DataType type, ReferenceTensor& tensor, const ReferenceScales& s) {
  for (std::size_t i = 0; i < tensor.result.size(); ++i) {
    float sum = 0;
    for (std::size_t r = 0; r < s.world; ++r) {
      float value = tensor.gradients[r][i] * s.whole();
      if (type == DataType::kFloat16) value += tensor.residuals[r][i];
      const float sent = narrowed(type, value);
      tensor.residuals[r][i] = type == DataType::kFloat16 && std::fabs(value) < 0x1p-14f ? value - sent : 0;
      sum = r == 0 ? sent : sum + sent;
    }
    tensor.result[i] = narrowed(type, sum);
  }
}

void reference_int8(ReferenceTensor& tensor, const ReferenceScales& s) {
  constexpr std::size_t kBlock = 256;
  for (std::size_t begin = 0; begin < tensor.result.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, tensor.result.size());
    Floats sums(end - begin, 0.0f);
    for (std::size_t r = 0; r < s.world; ++r) {
      Floats& residual = tensor.residuals[r];
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const float scaled = tensor.gradients[r][i] * s.unit();
        residual[i] += scaled;
        largest = std::max(largest, std::fabs(residual[i]));
      }
      if (largest < 1e-30f) continue;
      const float step = largest / 127.0f;
      const float inverse = 127.0f / largest;
      for (std::size_t i = begin; i < end; ++i) {
        const float code = std::nearbyint(residual[i] * inverse);
        const float sent = code * step;
        sums[i - begin] += sent;
        residual[i] -= sent;
      }
    }
    for (std::size_t i = begin; i < end; ++i) tensor.result[i] = sums[i - begin] * s.mean();
  }
}

void reference_top_k(double ratio, ReferenceTensor& tensor, const ReferenceScales& s) {
  const std::size_t elements = tensor.result.size();
  const auto k =
      std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(elements))), 1, elements);
  std::fill(tensor.result.begin(), tensor.result.end(), 0.0f);
  for (std::size_t r = 0; r < s.world; ++r) {
    Floats& residual = tensor.residuals[r];
    for (std::size_t i = 0; i < elements; ++i) {
      const float scaled = tensor.gradients[r][i] * s.unit();
      residual[i] += scaled;
    }
    std::vector<std::size_t> order(elements);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return std::fabs(residual[a]) > std::fabs(residual[b]); });
    for (std::size_t i = 0; i < k; ++i) {
      const float share = s.mean() * residual[order[i]];
      tensor.result[order[i]] += share;
      residual[order[i]] = 0;
    }
  }
}

// What one run of steps is made of; the same on all ranks.
struct ReferenceSetting {
  std::vector<test::Shape> shapes;
  Compression codec;
  int batches = 1;
  std::uint32_t seed = 0;
};

// `codec`: which; its settings are drawn.
ReferenceSetting random_setting(const Compression& codec, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto up_to = [&](std::uint32_t n) { return 1 + random() % n; };
  ReferenceSetting setting;
  setting.seed = seed;
  const std::size_t tensors = up_to(6);
  for (std::size_t t = 0; t < tensors; ++t) {
    const bool vector = random() % 3 == 0;
    setting.shapes.push_back({up_to(vector ? 700 : 60), vector ? 1 : up_to(60)});
  }
  setting.codec = codec;
  const double ratio = std::array{0.01, 0.1, 0.37, 1.0}[random() % 4];
  const auto rank = static_cast<int>(up_to(5));
  if (auto* const top_k = std::get_if<TopK>(&setting.codec)) top_k->ratio = ratio;
  if (auto* const power_sgd = std::get_if<PowerSgd>(&setting.codec)) *power_sgd = {rank, 0};
  setting.batches = static_cast<int>(up_to(4));
  return setting;
}

// A gradient: zeros, values of one size, or of all sizes from 1e-12 to 100.
void fill_random(Floats& gradient, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-12, 2);
  const auto kind = random() % 4;
  const float size = std::pow(10.0f, exponent(random));
  for (float& v : gradient) {
    v = kind == 0 ? 0.0f : normal(random) * (kind == 1 ? std::pow(10.0f, exponent(random)) : size);
    if (random() % 16 == 0) v = 0;
  }
}

class Reference {
 public:
  Reference(const ReferenceSetting& setting, std::size_t world) : setting_(setting), world_(world) {
    for (const test::Shape& shape : setting.shapes) {
      ReferenceTensor tensor;
      tensor.result.resize(shape.rows * shape.columns);
      tensor.gradients.assign(world, tensor.result);
      tensor.residuals.assign(world, tensor.result);
      tensors_.push_back(std::move(tensor));
    }
  }
  // The gradients of a step, on all ranks; `unused`: zeros everywhere.
  void begin(int step, const std::vector<bool>& unused) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      for (std::size_t r = 0; r < world_; ++r) {
        Floats& gradient = tensors_[t].gradients[r];
        if (unused[t]) {
          std::fill(gradient.begin(), gradient.end(), 0.0f);
        } else {
          fill_random(gradient, setting_.seed * 7919 + static_cast<std::uint32_t>(step * 1009 + 31 * t + r));
        }
      }
    }
  }
  void exchange(double scale) {
    const ReferenceScales scales{scale, world_};
    for (ReferenceTensor& tensor : tensors_) {
      if (is<Fp16>()) {
        reference_narrow(DataType::kFloat16, tensor, scales);
      } else if (is<Bf16>()) {
        reference_narrow(DataType::kBfloat16, tensor, scales);
      } else if (is<Int8>()) {
        reference_int8(tensor, scales);
      } else if (const auto* const top_k = std::get_if<TopK>(&setting_.codec)) {
        reference_top_k(top_k->ratio, tensor, scales);
      } else {
        reference_plain(tensor, scales);
      }
    }
  }
  void not_applied(std::size_t t) {
    ReferenceTensor& tensor = tensors_[t];
    if (is<Int8>() || is<TopK>()) {
      for (Floats& residual : tensor.residuals) {
        for (std::size_t i = 0; i < residual.size(); ++i) residual[i] += tensor.result[i];
      }
      std::fill(tensor.result.begin(), tensor.result.end(), 0.0f);
    }
  }
  ReferenceTensor& of(std::size_t t) { return tensors_[t]; }

 private:
  template <class Settings>
  bool is() const {
    return std::holds_alternative<Settings>(setting_.codec);
  }

  const ReferenceSetting& setting_;
  std::size_t world_;
  std::vector<ReferenceTensor> tensors_;
};

const Floats* residual_in(const std::vector<CompressionState>& state, const std::string& tensor) {
  for (const CompressionState& one : state) {
    if (one.name == "error/" + tensor) return &one.values;
  }
  return nullptr;
}

struct ReferenceCase {
  int ranks;
  Compression codec;
};

class AgainstAReference : public testing::TestWithParam<ReferenceCase> {
 protected:
  // `check(model, reference, step)` after every exchange.
  template <class Check>
  void run(std::uint32_t seeds, const Check& check) {
    test::run_communicator_ranks(test::TestWorld(GetParam().ranks), "thread", [&](Communicator& comm) {
      for (std::uint32_t seed = 1; seed <= seeds; ++seed) {
        const ReferenceSetting setting = random_setting(GetParam().codec, seed);
        test::Model model(comm, setting.shapes, setting.batches);
        CompressionOptions options;
        options.codec = codec_maker(setting.codec);
        options.seed = seed;
        GradientCompressor compressor(options, model.tensors, comm);
        Reference reference(setting, static_cast<std::size_t>(comm.world_size()));
        std::mt19937 random(seed + 100);
        for (int step = 0; step < 6; ++step) {
          std::vector<bool> unused;
          for (std::size_t t = 0; t < model.tensors.size(); ++t) unused.push_back(random() % 6 == 0);
          reference.begin(step, unused);
          for (std::size_t t = 0; t < model.tensors.size(); ++t) {
            std::ranges::copy(reference.of(t).gradients[static_cast<std::size_t>(comm.rank())], model.of(t).begin());
          }
          const auto before = compressor.save_state();
          model.exchange(compressor, 1 + random() % model.tensors.size(), random() % 2 == 0);
          reference.exchange(model.scale());
          check(comm, model, compressor, reference, before, unused,
                "seed " + std::to_string(seed) + ", step " + std::to_string(step));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    });
  }
};

class Formulas : public AgainstAReference {};

TEST_P(Formulas, EveryBitIsTheirs) {
  run(20, [](Communicator& comm, test::Model& model, GradientCompressor& compressor, Reference& reference,
             const std::vector<CompressionState>&, const std::vector<bool>& unused, const std::string& what) {
    for (std::size_t t = 0; t < unused.size(); ++t) {
      const Floats& want = reference.of(t).result;
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(model.of(t)[i], want[i]) << what << ", tensor " << t << ", element " << i;
      }
      if (!unused[t]) continue;
      compressor.not_applied(t);
      reference.not_applied(t);
    }
    const auto state = compressor.save_state();
    for (std::size_t t = 0; t < unused.size(); ++t) {
      const Floats* const residual = residual_in(state, model.tensors[t].name);
      if (!residual) continue;
      const Floats& want = reference.of(t).residuals[static_cast<std::size_t>(comm.rank())];
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ((*residual)[i], want[i]) << what << ", error feedback of tensor " << t << ", element " << i;
      }
    }
  });
}

std::vector<ReferenceCase> formula_cases() {
  std::vector<ReferenceCase> all;
  for (const Compression& codec : std::vector<Compression>{NoCompression(), Fp16(), Bf16(), Int8(), TopK()}) {
    for (const int ranks : {2, 3, 5}) all.push_back({ranks, codec});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, Formulas, testing::ValuesIn(formula_cases()), [](const auto& info) {
  const std::string word = word_of(info.param.codec);
  return (word.empty() ? "none" : word) + std::to_string(info.param.ranks);
});

class LowRank : public AgainstAReference {};

// What a step does not bring the error feedback keeps: the ranks' residuals and gradients before it are the residuals
// after it and what everybody got. Gradients that are not compressed are those of a plain sum, bit by bit.
TEST_P(LowRank, NothingIsLost) {
  run(20, [](Communicator& comm, test::Model& model, GradientCompressor& compressor, Reference& reference,
             const std::vector<CompressionState>& before, const std::vector<bool>& unused, const std::string& what) {
    const auto after = compressor.save_state();
    const double n = comm.world_size();
    for (std::size_t t = 0; t < unused.size(); ++t) {
      const auto got = model.of(t);
      const Floats* const left = residual_in(after, model.tensors[t].name);
      if (!left) {
        const Floats& want = reference.of(t).result;
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << ", tensor " << t;
        continue;
      }
      const Floats* const owed = residual_in(before, model.tensors[t].name);
      std::vector<double> sums(2 * got.size());  // owed before and new, left
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double gradient =
            static_cast<double>(reference.of(t).gradients[static_cast<std::size_t>(comm.rank())][i]);
        sums[i] = static_cast<double>((*owed)[i]) + gradient * model.scale() * n;
        sums[got.size() + i] = static_cast<double>((*left)[i]);
      }
      // A few roundings of the largest numbers on the way.
      double largest = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        largest = std::max({largest, std::fabs(sums[i]), std::fabs(static_cast<double>(got[i]))});
      }
      comm.all_reduce(&largest, 1, DataType::kFloat64).wait();
      comm.all_reduce(sums.data(), sums.size(), DataType::kFloat64).wait();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(sums[i], sums[got.size() + i] + n * static_cast<double>(got[i]), 1e-5 * largest + 1e-30)
            << what << ", tensor " << t << ", element " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, LowRank,
                         testing::Values(ReferenceCase{2, PowerSgd()}, ReferenceCase{3, PowerSgd()},
                                         ReferenceCase{5, PowerSgd()}),
                         [](const auto& info) { return "powersgd" + std::to_string(info.param.ranks); });

}  // namespace
}  // namespace dtrain::comm
