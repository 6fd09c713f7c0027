// The source of a loader's samples. A data set is immutable, and loaders share it through a shared_ptr.
//
// A format implements Dataset where all its samples have one shape (arrays, tokens), and SampleSource (sample.h) where
// each sample has a shape of its own (pictures, texts); map(), stack() and their like make a Dataset of the latter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/shared_memory.h"

namespace dtrain::data {

enum class ElementType : std::uint8_t { kUint8, kInt32, kInt64, kFloat32, kFloat64 };
std::size_t size_of(ElementType type);
const char* name_of(ElementType type);  // "uint8"

// One tensor of a sample. `shape` does not include the batch dimension (empty: a scalar).
struct Field {
  static constexpr std::int64_t kAnyExtent = -1;  // an extent that differs between batches

  std::string name;
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
  bool is_fixed() const;      // no extent is kAnyExtent
  std::size_t bytes() const;  // of one sample; the shape is fixed
};

// The pass over the data for which samples are read. Random transforms depend on it and on the sample's index alone. So
// the result for a sample is the same on any rank and any worker, and when it is read again.
struct Pass {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

// The place of a batch's samples, for random changes of batches.
struct BatchPlace {
  Pass pass;
  std::int64_t position = 0;  // position of the batch's first sample in the epoch's order, over all ranks
};

// Runs of consecutive samples that are quicker to read at once than one by one. Shuffling mixes the samples of a number
// of blocks with each other (epoch_order.h).
struct Blocks {
  std::vector<std::int64_t> samples;  // of each block, in the data set's order; empty: any order is as quick
  std::int64_t bytes = 0;             // approximate bytes of a block
};

// Returns blocks of one size, for samples of one size: of some 4 MiB, or more if there would be too many blocks.
Blocks even_blocks(std::int64_t samples, std::int64_t bytes_of_sample);

// Returns memory of `bytes` bytes, aligned to 64 bytes. The last pointer to it releases it. Any thread may call.
using BatchAllocator = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

// A batch in memory. A pointer may outlive its loader and be released on any thread.
struct HostBatch {
  std::vector<std::shared_ptr<std::byte>> fields;  // one for each field of the data set
  std::vector<std::vector<std::int64_t>> shapes;   // of each field, without the batch dimension
  std::int64_t samples = 0;
};

// A batch that workers are reading; each of them reads some of its places.
class BatchBuilder {
 public:
  virtual ~BatchBuilder() = default;
  // Reads `samples` into the places from `place` on. Several threads may call it at once, for different places.
  // An exception leaves these places open: they are read again, one by one or with other samples, or not at all.
  virtual void read(std::int64_t place, std::span<const std::int64_t> samples) = 0;
  // Returns the whole batch when all places have been read. One thread calls it, once, as its last call.
  virtual HostBatch finish() = 0;
};

// Errors are DataError; those about a sample name the file and the offset. Every function may be called by several
// threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual const std::vector<Field>& fields() const = 0;
  // Writes field f of samples[i] to outputs[f][i * fields()[f].bytes() …]. There is one output for each field; samples
  // are from 0 to size() - 1. Not called where begin() is overridden.
  virtual void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const = 0;
  // Does the same for a pass, for data sets with random transforms.
  virtual void read_for(const Pass&, std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const {
    read(samples, outputs);
  }
  // Begins a batch of `samples` samples. Without an override its memory comes from `allocate`, and read_for() fills it;
  // an override may make fields of another shape in each batch, or change the batch as a whole.
  virtual std::unique_ptr<BatchBuilder> begin(const BatchPlace& place, std::int64_t samples,
                                              const BatchAllocator& allocate) const;

  virtual Blocks blocks() const { return {}; }
  // A hint that samples `first` to `first + count - 1` will be read soon: starts reading ahead without waiting for it.
  virtual void will_read(std::int64_t /*first*/, std::int64_t /*count*/) const {}
  // Returns the origin of a sample, for errors and for people: "train-0003.tar, offset 51200 (n01440764/7.jpg)". May be
  // empty.
  virtual std::string where(std::int64_t /*sample*/) const { return {}; }
  // Returns the origin as far as it is known without reading a file, for errors about files that do not answer.
  virtual std::string where_unread(std::int64_t sample) const { return where(sample); }
};

// Random numbers as a function of their purpose: a stream is named by a few integers (seed, epoch, …) and holds no
// other state than its position. splitmix64 (Steele, Lea, Flood 2014), the same on every machine. Not for secrets.
inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ull;

constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class RandomStream {
 public:
  RandomStream(std::initializer_list<std::uint64_t> name) {
    for (const auto part : name) state_ = mix64(state_ + kGoldenGamma + part);
  }

  std::uint64_t next() { return mix64(state_ += kGoldenGamma); }

  // Returns a number in [0, bound), every value equally likely (Lemire 2019). `bound` is not 0.
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    auto product = static_cast<Wide>(next()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = -bound % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  // Returns a number in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // Returns a number in [-1, 1), a multiple of 2^-23, which is exact in float.
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23f; }

 private:
  std::uint64_t state_ = 0;
};

// Keeps a data set in memory once per host instead of once per rank: runs `make` on one local rank and maps its result
// on the others, possibly read-only. Collective over the ranks of a host: all call it in the same order with the same
// names.
using HostShare = std::function<SharedMemory(const std::string& name, const std::function<SharedMemory()>& make)>;

// For programs of one rank: runs `make` in this process.
HostShare no_sharing();

}  // namespace dtrain::data
