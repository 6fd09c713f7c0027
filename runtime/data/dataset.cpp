#include "dtrain/data/dataset.h"

#include <algorithm>
#include <numeric>

namespace dtrain::data {

namespace {

struct TypeFacts {
  const char* name = "unknown";
  std::size_t bytes = 0;
};

TypeFacts facts_of(ElementType type) {
  constexpr TypeFacts kFacts[]{{"uint8", 1}, {"int32", 4}, {"int64", 8}, {"float32", 4}, {"float64", 8}};
  const auto number = static_cast<std::size_t>(type);  // of a data set in shared memory, which may be damaged
  return number < std::size(kFacts) ? kFacts[number] : TypeFacts();
}

}  // namespace

std::size_t size_of(ElementType type) {
  return facts_of(type).bytes;
}

const char* name_of(ElementType type) {
  return facts_of(type).name;
}

bool Field::is_fixed() const {
  return std::find(shape.begin(), shape.end(), kAnyExtent) == shape.end();
}

std::size_t Field::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), size_of(type), std::multiplies<std::size_t>());
}

Blocks even_blocks(std::int64_t samples, std::int64_t bytes_of_sample) {
  constexpr std::int64_t kBytes = 4 << 20, kMost = 1 << 16;
  const std::int64_t of_block =
      std::max({std::int64_t{1}, kBytes / std::max<std::int64_t>(1, bytes_of_sample), (samples + kMost - 1) / kMost});
  Blocks blocks{std::vector<std::int64_t>(static_cast<std::size_t>(samples / of_block), of_block),
                of_block * bytes_of_sample};
  if (samples % of_block != 0) blocks.samples.push_back(samples % of_block);
  return blocks;
}

namespace {

// A batch of samples of fixed shapes, which are read into their places.
class PlacedBatch final : public BatchBuilder {
 public:
  PlacedBatch(const Dataset& dataset, const Pass& pass, std::int64_t samples, const BatchAllocator& allocate)
      : dataset_(dataset), pass_(pass) {
    batch_.samples = samples;
    for (const Field& field : dataset.fields()) {
      batch_.fields.push_back(allocate(field.bytes() * static_cast<std::size_t>(samples)));
      batch_.shapes.push_back(field.shape);
    }
  }
  void read(std::int64_t place, std::span<const std::int64_t> samples) override {
    std::vector<std::byte*> outputs;
    outputs.reserve(batch_.fields.size());
    for (std::size_t f = 0; f < batch_.fields.size(); ++f) {
      outputs.push_back(batch_.fields[f].get() + static_cast<std::size_t>(place) * dataset_.fields()[f].bytes());
    }
    dataset_.read_for(pass_, samples, outputs);
  }
  HostBatch finish() override { return std::move(batch_); }

 private:
  const Dataset& dataset_;
  const Pass pass_;
  HostBatch batch_;
};

}  // namespace

std::unique_ptr<BatchBuilder> Dataset::begin(const BatchPlace& place, std::int64_t samples,
                                             const BatchAllocator& allocate) const {
  return std::make_unique<PlacedBatch>(*this, place.pass, samples, allocate);
}

HostShare no_sharing() {
  return [](const std::string&, const std::function<SharedMemory()>& make) { return make(); };
}

}  // namespace dtrain::data
