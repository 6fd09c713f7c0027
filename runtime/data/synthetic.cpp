#include "dtrain/data/data_sets.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/data/in_memory.h"

namespace dtrain::data {
namespace {

// The purpose of a random stream: a part of its name, so that streams of one seed never overlap.
enum Purpose : std::uint64_t { kSample = 1, kClassCentre = 2, kWeights = 3 };

void require(bool good, const char* option, std::int64_t value, const char* allowed) {
  if (!good) {
    throw DataError(std::string("synthetic data: ") + option + " is " + std::to_string(value) + ", but must be " +
                    allowed);
  }
}

void check(const SyntheticOptions& options) {
  require(options.samples >= 1, "samples", options.samples, "at least 1");
  require(options.first >= 0, "first", options.first, "at least 0");
  require(options.features >= 1, "features", options.features, "at least 1");
  require(options.classes == 0 || options.classes >= 2, "classes", options.classes, "0 (regression) or at least 2");
  require(options.targets >= 1, "targets", options.targets, "at least 1");
}

// Returns `rows` x `columns` numbers in [-1, 1).
std::vector<float> random_matrix(std::uint64_t seed, Purpose purpose, std::int64_t rows, std::int64_t columns) {
  std::vector<float> matrix(static_cast<std::size_t>(rows * columns));
  RandomStream random{seed, purpose};
  for (auto& value : matrix) value = random.symmetric();
  return matrix;
}

template <typename T>
void store(std::span<std::byte> column, std::int64_t index, T value) {
  std::memcpy(column.data() + static_cast<std::size_t>(index) * sizeof value, &value, sizeof value);
}

void fill_classes(const SyntheticOptions& options, std::span<std::byte> features, std::span<std::byte> labels) {
  const auto width = options.features;
  const auto centres = random_matrix(options.seed, kClassCentre, options.classes, width);
  for (std::int64_t i = 0; i < options.samples; ++i) {
    RandomStream random{options.seed, kSample, static_cast<std::uint64_t>(options.first + i)};
    const auto label = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(options.classes)));
    const auto* centre = centres.data() + label * width;
    for (std::int64_t j = 0; j < width; ++j) store(features, i * width + j, centre[j] + random.symmetric());
    store(labels, i, label);
  }
}

void fill_regression(const SyntheticOptions& options, std::span<std::byte> features, std::span<std::byte> targets) {
  const auto width = options.features;
  const auto weights = random_matrix(options.seed, kWeights, options.targets, width);
  const double scale = 3.0 / std::sqrt(static_cast<double>(width));  // gives targets a variance of about 1
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < options.samples; ++i) {
    RandomStream random{options.seed, kSample, static_cast<std::uint64_t>(options.first + i)};
    for (auto& value : row) value = random.symmetric();
    std::memcpy(features.data() + static_cast<std::size_t>(i) * row.size() * sizeof(float), row.data(),
                row.size() * sizeof(float));
    for (std::int64_t k = 0; k < options.targets; ++k) {
      // Products of two floats are exact in double, so a fused multiply-add gives the same bits as a separate one.
      double sum = 0;
      for (std::int64_t j = 0; j < width; ++j) sum += static_cast<double>(row[j]) * weights[k * width + j];
      store(targets, i * options.targets + k, static_cast<float>(sum * scale));
    }
  }
}

SharedMemory generate(const SyntheticOptions& options) {
  const Field features{"features", ElementType::kFloat32, {options.features}};
  const auto answer = options.classes > 0 ? Field{"label", ElementType::kInt64, {}}
                                          : Field{"target", ElementType::kFloat32, {options.targets}};
  auto dataset = InMemoryDataset::allocate("dtrain-synthetic", options.samples, {features, answer});
  (options.classes > 0 ? fill_classes : fill_regression)(options, dataset.column(0), dataset.column(1));
  return std::move(dataset).release();
}

}  // namespace

std::shared_ptr<Dataset> make_synthetic(const SyntheticOptions& options, const HostShare& share) {
  check(options);
  std::string name = "synthetic";
  for (const auto value : {options.samples, options.first, options.features, options.classes, options.targets}) {
    name += ":" + std::to_string(value);
  }
  name += ":" + std::to_string(options.seed);
  return std::make_shared<InMemoryDataset>(share(name, [&] { return generate(options); }));
}

}  // namespace dtrain::data
