// Samples of any shape, and functions that make a data set of them:
//
//   auto pictures = std::make_shared<ImageFolder>(...);                          // a SampleSource
//   auto small = map(pictures, [](Sample& sample, RandomStream& random) {...});  // changes each sample
//   auto training = stack(small, {{"image", kUint8, {3, 224, 224}}, {"label", kInt64, {}}});  // a Dataset
//
// All functions given here run on the loader's workers, several at once; they must not change shared data. Their random
// numbers come from a stream of (seed, epoch, index, stage of the chain): the same on any worker and any rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

// One value of a sample: an array, C order. Encoded files are uint8 [bytes].
struct Value {
  ElementType type = ElementType::kUint8;
  std::vector<std::int64_t> shape;
  std::shared_ptr<std::byte> data;  // may be shared with other samples: replace it rather than writing into it

  std::int64_t elements() const;
  std::size_t bytes() const;
  // Memory for an array, not initialised. Memory that was released is used again, so it needs no new pages.
  static Value make(ElementType type, std::vector<std::int64_t> shape);
  static Value scalar(std::int64_t number);
};

struct Sample {
  std::int64_t index = 0;
  std::vector<Value> values;  // in the order of SampleSource::names()
};

// A data set whose samples have shapes of their own. Immutable; several threads may call everything at once. Errors are
// DataError and name the file and the offset.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& names() const = 0;  // of the values
  // `pass` is for sources with random transforms; a source that reads files ignores it.
  virtual Sample read(const Pass& pass, std::int64_t index) const = 0;

  // The same as Dataset's.
  virtual Blocks blocks() const { return {}; }
  virtual void will_read(std::int64_t /*first*/, std::int64_t /*count*/) const {}
  virtual std::string where(std::int64_t /*sample*/) const { return {}; }
  virtual std::string where_unread(std::int64_t sample) const { return where(sample); }
  // The number of transforms in the chain so far. It selects the random stream of the next one.
  virtual std::uint64_t stage() const { return 0; }
};

// Returns the random numbers of stage `stage` for one sample.
RandomStream sample_stream(const Pass& pass, std::int64_t index, std::uint64_t stage);
// Returns the random numbers of stage `stage` for one batch.
RandomStream batch_stream(const BatchPlace& place, std::uint64_t stage);

using MapFunction = std::function<void(Sample& sample, RandomStream& random)>;
// Returns the samples of `source`, changed by `function`. `names`: of the values afterwards (empty: as before).
std::shared_ptr<SampleSource> map(std::shared_ptr<const SampleSource> source, MapFunction function,
                                  std::vector<std::string> names = {});

// Returns a data set of samples that all have the shapes and types of `fields`, one for each value, in this order.
// DataError names the sample that has another shape or type.
std::shared_ptr<Dataset> stack(std::shared_ptr<const SampleSource> source, std::vector<Field> fields);

// The last step of a chain, which writes directly into the batch: outputs[f] has fields[f].bytes() bytes.
using IntoFunction =
    std::function<void(const Sample& sample, RandomStream& random, std::span<std::byte* const> outputs)>;
std::shared_ptr<Dataset> map_into(std::shared_ptr<const SampleSource> source, std::vector<Field> fields,
                                  IntoFunction function);

// Makes a batch of its samples, in their order. Memory for its fields comes from `allocate` (bytes).
using CollateFunction =
    std::function<HostBatch(std::vector<Sample> samples, RandomStream& random, const BatchAllocator& allocate)>;
// Returns a data set whose batches `function` makes. `fields` describes them; an extent that differs among batches is
// Field::kAnyExtent.
std::shared_ptr<Dataset> collate(std::shared_ptr<const SampleSource> source, std::vector<Field> fields,
                                 CollateFunction function);
// Pads each value at its end with `padding` to the longest of the batch, in the extents that `fields` leaves open.
CollateFunction pad_to_longest(std::vector<Field> fields, double padding = 0);

// Changes each batch of `dataset` as a whole. `fields`: those of the batches afterwards.
using BatchFunction = std::function<void(HostBatch& batch, RandomStream& random, const BatchAllocator& allocate)>;
std::shared_ptr<Dataset> batch_map(std::shared_ptr<const Dataset> dataset, BatchFunction function,
                                   std::vector<Field> fields);

}  // namespace dtrain::data
