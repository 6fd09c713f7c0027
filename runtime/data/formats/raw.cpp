#include "dtrain/data/data_sets.h"

#include <string>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/data/formats.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

struct RawFile {
  ArrayFiles::Array array;
  std::int64_t samples = 0;
};

RawFile open_array(const char* name, const RawArray& raw) {
  for (const std::int64_t extent : raw.shape) {
    if (extent < 1) {
      throw DataError(raw.file.string() + ": samples have a dimension of " + std::to_string(extent),
                      "give dimensions of at least 1");
    }
  }
  std::uint64_t sample_bytes = size_of(raw.type);
  for (const std::int64_t extent : raw.shape) {
    if (__builtin_mul_overflow(sample_bytes, static_cast<std::uint64_t>(extent), &sample_bytes)) {
      throw DataError(raw.file.string() + ": a sample of this shape has more bytes than 64 bits count",
                      "give the shape of one sample");
    }
  }
  const Field field{name, raw.type, raw.shape};
  const auto file = std::make_shared<const DataFile>(raw.file);
  const std::uint64_t bytes = field.bytes();
  if (file->size() % bytes != 0) {
    file->fail(file->size() / bytes * bytes,
               "the file ends inside a sample: its " + std::to_string(file->size()) + " bytes are no multiple of " +
                   std::to_string(bytes),
               "do type and shape fit the file?");
  }
  return {{file, 0, field}, static_cast<std::int64_t>(file->size() / bytes)};
}

}  // namespace

std::shared_ptr<Dataset> open_raw(const RawArray& features, const RawArray& target) {
  const RawFile first = open_array("features", features), second = open_array("target", target);
  if (first.samples != second.samples) {
    throw DataError(target.file.string() + ": " + std::to_string(second.samples) + " samples, but " +
                        features.file.string() + " has " + std::to_string(first.samples),
                    "do types and shapes fit the files?");
  }
  return std::make_shared<ArrayFiles>(first.samples, std::vector{first.array, second.array});
}

std::shared_ptr<Dataset> Raw::open(const Source& source, const HostShare&) const {
  return open_files(source, kSource, [&](const Source& part) {
    return open_raw({part.at("features"), features_type, features_shape},
                    {part.at("target"), target_type, target_shape});
  });
}

}  // namespace dtrain::data
