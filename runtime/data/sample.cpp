#include "dtrain/data/sample.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

constexpr std::align_val_t kAlignment{64};

// Names that distinguish the streams of one seed.
constexpr std::uint64_t kOfSample = 0x73616d706c65;  // "sample"
constexpr std::uint64_t kOfBatch = 0x6261746368;     // "batch"

std::string shape_text(ElementType type, const std::vector<std::int64_t>& shape) {
  std::string text = name_of(type);
  text += " [";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

[[noreturn]] void fail(const SampleSource& source, std::int64_t index, const std::string& what,
                       const std::string& remedy) {
  const std::string where = source.where(index);
  throw DataError("sample " + std::to_string(index) + (where.empty() ? "" : " (" + where + ")") + ": " + what, remedy);
}

void check_fixed(const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    if (!field.is_fixed()) {
      throw DataError("field " + field.name + " has no fixed shape",
                      "give each extent, or collate the samples with pad_to_longest()");
    }
  }
}

// A Dataset that forwards to a source.
class OverSource : public Dataset {
 public:
  OverSource(std::shared_ptr<const SampleSource> source, std::vector<Field> fields)
      : source_(std::move(source)), fields_(std::move(fields)) {
    if (!source_) throw DataError("there is no data set to read");
  }
  std::int64_t size() const override { return source_->size(); }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    read_for({}, samples, outputs);
  }
  Blocks blocks() const override { return source_->blocks(); }
  void will_read(std::int64_t first, std::int64_t count) const override { source_->will_read(first, count); }
  std::string where(std::int64_t sample) const override { return source_->where(sample); }
  std::string where_unread(std::int64_t sample) const override { return source_->where_unread(sample); }

 protected:
  const SampleSource& source() const { return *source_; }

 private:
  std::shared_ptr<const SampleSource> source_;
  std::vector<Field> fields_;
};

class Mapped final : public SampleSource {
 public:
  Mapped(std::shared_ptr<const SampleSource> source, MapFunction function, std::vector<std::string> names)
      : source_(std::move(source)), function_(std::move(function)), names_(std::move(names)) {
    if (!source_) throw DataError("map() was given no data set");
    if (!function_) throw DataError("map() was given no function");
    if (names_.empty()) names_ = source_->names();
  }
  std::int64_t size() const override { return source_->size(); }
  const std::vector<std::string>& names() const override { return names_; }
  Sample read(const Pass& pass, std::int64_t index) const override {
    Sample sample = source_->read(pass, index);
    RandomStream random = sample_stream(pass, index, source_->stage());
    function_(sample, random);
    if (sample.values.size() != names_.size()) {
      fail(*source_, index,
           "a function given to map() left " + std::to_string(sample.values.size()) + " values, but " +
               std::to_string(names_.size()) + " are named",
           "give map() the names of the values that the function leaves");
    }
    return sample;
  }
  Blocks blocks() const override { return source_->blocks(); }
  void will_read(std::int64_t first, std::int64_t count) const override { source_->will_read(first, count); }
  std::string where(std::int64_t sample) const override { return source_->where(sample); }
  std::string where_unread(std::int64_t sample) const override { return source_->where_unread(sample); }
  std::uint64_t stage() const override { return source_->stage() + 1; }

 private:
  std::shared_ptr<const SampleSource> source_;
  MapFunction function_;
  std::vector<std::string> names_;
};

class Stacked final : public OverSource {
 public:
  Stacked(std::shared_ptr<const SampleSource> source, std::vector<Field> fields)
      : OverSource(std::move(source), std::move(fields)) {
    check_fixed(this->fields());
  }
  void read_for(const Pass& pass, std::span<const std::int64_t> samples,
                std::span<std::byte* const> outputs) const override {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Sample sample = source().read(pass, samples[i]);
      check(sample);
      for (std::size_t f = 0; f < fields().size(); ++f) {
        const std::size_t bytes = fields()[f].bytes();
        std::memcpy(outputs[f] + i * bytes, sample.values[f].data.get(), bytes);
      }
    }
  }

 private:
  void check(const Sample& sample) const {
    if (sample.values.size() != fields().size()) {
      fail(source(), sample.index,
           "it has " + std::to_string(sample.values.size()) + " values, but the data set has " +
               std::to_string(fields().size()) + " fields",
           "name a field for each value");
    }
    for (std::size_t f = 0; f < fields().size(); ++f) {
      const Value& value = sample.values[f];
      if (value.type == fields()[f].type && value.shape == fields()[f].shape) continue;
      fail(source(), sample.index,
           fields()[f].name + " is " + shape_text(value.type, value.shape) + ", but samples of " +
               shape_text(fields()[f].type, fields()[f].shape) + " are stacked",
           "bring all samples to one shape with map(), or collate them with pad_to_longest()");
    }
  }
};

class MappedInto final : public OverSource {
 public:
  MappedInto(std::shared_ptr<const SampleSource> source, std::vector<Field> fields, IntoFunction function)
      : OverSource(std::move(source), std::move(fields)), function_(std::move(function)) {
    check_fixed(this->fields());
    if (!function_) throw DataError("map_into() was given no function");
  }
  void read_for(const Pass& pass, std::span<const std::int64_t> samples,
                std::span<std::byte* const> outputs) const override {
    std::vector<std::byte*> own(outputs.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      for (std::size_t f = 0; f < outputs.size(); ++f) own[f] = outputs[f] + i * fields()[f].bytes();
      const Sample sample = source().read(pass, samples[i]);
      RandomStream random = sample_stream(pass, samples[i], source().stage());
      function_(sample, random, own);
    }
  }

 private:
  IntoFunction function_;
};

// Keeps samples of any shape until the batch is complete.
class CollatedBatch final : public BatchBuilder {
 public:
  CollatedBatch(const SampleSource& source, const CollateFunction& function, const BatchPlace& place,
                std::int64_t samples, const BatchAllocator& allocate)
      : source_(source),
        function_(function),
        place_(place),
        allocate_(allocate),
        samples_(static_cast<std::size_t>(samples)) {}
  void read(std::int64_t place, std::span<const std::int64_t> samples) override {
    for (const std::int64_t sample : samples) {
      samples_[static_cast<std::size_t>(place++)] = source_.read(place_.pass, sample);
    }
  }
  HostBatch finish() override {
    RandomStream random = batch_stream(place_, source_.stage());
    const auto count = static_cast<std::int64_t>(samples_.size());
    HostBatch batch = function_(std::move(samples_), random, allocate_);
    batch.samples = count;
    return batch;
  }

 private:
  const SampleSource& source_;
  const CollateFunction& function_;
  const BatchPlace place_;
  const BatchAllocator allocate_;
  std::vector<Sample> samples_;
};

class Collated final : public OverSource {
 public:
  Collated(std::shared_ptr<const SampleSource> source, std::vector<Field> fields, CollateFunction function)
      : OverSource(std::move(source), std::move(fields)), function_(std::move(function)) {
    if (!function_) throw DataError("collate() was given no function");
  }
  void read(std::span<const std::int64_t>, std::span<std::byte* const>) const override {
    throw DataError("samples that are collated have no place of their own in a batch", "read whole batches: begin()");
  }
  std::unique_ptr<BatchBuilder> begin(const BatchPlace& place, std::int64_t samples,
                                      const BatchAllocator& allocate) const override {
    return std::make_unique<CollatedBatch>(source(), function_, place, samples, allocate);
  }

 private:
  CollateFunction function_;
};

class ChangedBatch final : public BatchBuilder {
 public:
  ChangedBatch(std::unique_ptr<BatchBuilder> inner, const BatchFunction& function, RandomStream random,
               const BatchAllocator& allocate)
      : inner_(std::move(inner)), function_(function), random_(random), allocate_(allocate) {}
  void read(std::int64_t place, std::span<const std::int64_t> samples) override { inner_->read(place, samples); }
  HostBatch finish() override {
    HostBatch batch = inner_->finish();
    function_(batch, random_, allocate_);
    return batch;
  }

 private:
  std::unique_ptr<BatchBuilder> inner_;
  const BatchFunction& function_;
  RandomStream random_;
  const BatchAllocator allocate_;
};

class BatchMapped final : public Dataset {
 public:
  BatchMapped(std::shared_ptr<const Dataset> dataset, BatchFunction function, std::vector<Field> fields)
      : dataset_(std::move(dataset)), function_(std::move(function)), fields_(std::move(fields)) {
    if (!dataset_) throw DataError("batch_map() was given no data set");
    if (!function_) throw DataError("batch_map() was given no function");
    if (const auto* inner = dynamic_cast<const BatchMapped*>(dataset_.get())) stage_ = inner->stage_ + 1;
  }
  std::int64_t size() const override { return dataset_->size(); }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t>, std::span<std::byte* const>) const override {
    throw DataError("batches that are changed as a whole cannot be read by the sample", "read whole batches: begin()");
  }
  std::unique_ptr<BatchBuilder> begin(const BatchPlace& place, std::int64_t samples,
                                      const BatchAllocator& allocate) const override {
    return std::make_unique<ChangedBatch>(dataset_->begin(place, samples, allocate), function_,
                                          batch_stream(place, kFirstStage + stage_), allocate);
  }
  Blocks blocks() const override { return dataset_->blocks(); }
  void will_read(std::int64_t first, std::int64_t count) const override { dataset_->will_read(first, count); }
  std::string where(std::int64_t sample) const override { return dataset_->where(sample); }
  std::string where_unread(std::int64_t sample) const override { return dataset_->where_unread(sample); }

 private:
  static constexpr std::uint64_t kFirstStage = std::uint64_t{1} << 32;  // after the stages of a chain's samples

  std::shared_ptr<const Dataset> dataset_;
  BatchFunction function_;
  std::vector<Field> fields_;
  std::uint64_t stage_ = 0;
};

void fill(std::span<std::byte> memory, ElementType type, double number) {
  const auto fill_as = [&]<typename T>(T value) {
    for (std::size_t at = 0; at < memory.size(); at += sizeof(T)) std::memcpy(memory.data() + at, &value, sizeof(T));
  };
  switch (type) {
    case ElementType::kUint8:
      return fill_as(static_cast<std::uint8_t>(number));
    case ElementType::kInt32:
      return fill_as(static_cast<std::int32_t>(number));
    case ElementType::kInt64:
      return fill_as(static_cast<std::int64_t>(number));
    case ElementType::kFloat32:
      return fill_as(static_cast<float>(number));
    case ElementType::kFloat64:
      return fill_as(number);
  }
}

// Copies an array into the beginning of each extent of a larger one. `element`: bytes of one element.
void copy_padded(std::byte* to, std::span<const std::int64_t> to_shape, const std::byte* from,
                 std::span<const std::int64_t> from_shape, std::size_t element) {
  if (from_shape.empty()) {
    std::memcpy(to, from, element);
    return;
  }
  const auto step = [&](std::span<const std::int64_t> shape) {
    std::size_t bytes = element;
    for (const std::int64_t extent : shape.subspan(1)) bytes *= static_cast<std::size_t>(extent);
    return bytes;
  };
  const std::size_t to_step = step(to_shape), from_step = step(from_shape);
  const auto count = static_cast<std::size_t>(from_shape.front());
  if (to_step == from_step && std::equal(to_shape.begin() + 1, to_shape.end(), from_shape.begin() + 1)) {
    if (count != 0) std::memcpy(to, from, count * from_step);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    copy_padded(to + i * to_step, to_shape.subspan(1), from + i * from_step, from_shape.subspan(1), element);
  }
}

}  // namespace

std::int64_t Value::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t Value::bytes() const {
  return static_cast<std::size_t>(elements()) * size_of(type);
}

Value Value::make(ElementType type, std::vector<std::int64_t> shape) {
  Value value{type, std::move(shape), nullptr};
  value.data = std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new(value.bytes(), kAlignment)),
                                          [](std::byte* memory) { ::operator delete(memory, kAlignment); });
  return value;
}

Value Value::scalar(std::int64_t number) {
  Value value = make(ElementType::kInt64, {});
  std::memcpy(value.data.get(), &number, sizeof number);
  return value;
}

RandomStream sample_stream(const Pass& pass, std::int64_t index, std::uint64_t stage) {
  return {kOfSample, pass.seed, static_cast<std::uint64_t>(pass.epoch), static_cast<std::uint64_t>(index), stage};
}

RandomStream batch_stream(const BatchPlace& place, std::uint64_t stage) {
  return {kOfBatch, place.pass.seed, static_cast<std::uint64_t>(place.pass.epoch),
          static_cast<std::uint64_t>(place.position), stage};
}

std::shared_ptr<SampleSource> map(std::shared_ptr<const SampleSource> source, MapFunction function,
                                  std::vector<std::string> names) {
  return std::make_shared<Mapped>(std::move(source), std::move(function), std::move(names));
}

std::shared_ptr<Dataset> stack(std::shared_ptr<const SampleSource> source, std::vector<Field> fields) {
  return std::make_shared<Stacked>(std::move(source), std::move(fields));
}

std::shared_ptr<Dataset> map_into(std::shared_ptr<const SampleSource> source, std::vector<Field> fields,
                                  IntoFunction function) {
  return std::make_shared<MappedInto>(std::move(source), std::move(fields), std::move(function));
}

std::shared_ptr<Dataset> collate(std::shared_ptr<const SampleSource> source, std::vector<Field> fields,
                                 CollateFunction function) {
  return std::make_shared<Collated>(std::move(source), std::move(fields), std::move(function));
}

CollateFunction pad_to_longest(std::vector<Field> fields, double padding) {
  return [fields = std::move(fields), padding](std::vector<Sample> samples, RandomStream&,
                                               const BatchAllocator& allocate) {
    HostBatch batch;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      std::vector<std::int64_t> shape = fields[f].shape;
      for (const Sample& sample : samples) {
        const Value& value = sample.values.at(f);
        bool fits = value.type == fields[f].type && value.shape.size() == shape.size();
        for (std::size_t d = 0; fits && d < shape.size(); ++d) {
          if (fields[f].shape[d] == Field::kAnyExtent) {
            shape[d] = std::max(shape[d], value.shape[d]);
          } else {
            fits = value.shape[d] == shape[d];
          }
        }
        if (fits) continue;
        throw DataError("sample " + std::to_string(sample.index) + ": " + fields[f].name + " is " +
                            shape_text(value.type, value.shape) + ", which cannot be padded to " +
                            shape_text(fields[f].type, fields[f].shape) + " (-1: any extent)",
                        "bring it to this type and number of dimensions with map()");
      }
      const Field padded{fields[f].name, fields[f].type, shape};
      const std::size_t bytes = padded.bytes();
      auto memory = allocate(bytes * samples.size());
      for (std::size_t i = 0; i < samples.size(); ++i) {
        const Value& value = samples[i].values[f];
        std::byte* const to = memory.get() + i * bytes;
        if (value.shape != shape) fill({to, bytes}, padded.type, padding);
        copy_padded(to, shape, value.data.get(), value.shape, size_of(value.type));
      }
      batch.fields.push_back(std::move(memory));
      batch.shapes.push_back(std::move(shape));
    }
    return batch;
  };
}

std::shared_ptr<Dataset> batch_map(std::shared_ptr<const Dataset> dataset, BatchFunction function,
                                   std::vector<Field> fields) {
  return std::make_shared<BatchMapped>(std::move(dataset), std::move(function), std::move(fields));
}

}  // namespace dtrain::data
