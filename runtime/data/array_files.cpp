#include "array_files.h"

#include <string>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {

ArrayFiles::ArrayFiles(std::int64_t size, std::vector<Array> arrays) : size_(size), arrays_(std::move(arrays)) {
  for (const Array& array : arrays_) {
    fields_.push_back(array.field);
    std::uint64_t bytes = 0, end = 0;
    const bool too_large = __builtin_mul_overflow(array.field.bytes(), static_cast<std::uint64_t>(size_), &bytes) ||
                           __builtin_add_overflow(array.offset, bytes, &end);
    if (!too_large && end <= array.file->size()) continue;
    array.file->fail(array.file->size(), "truncated: the file ends here, but " + std::to_string(size_) +
                                             " samples of " + std::to_string(array.field.bytes()) +
                                             " bytes follow its offset " + std::to_string(array.offset));
  }
}

std::uint64_t ArrayFiles::offset_of(std::size_t array, std::int64_t sample) const {
  return arrays_[array].offset + static_cast<std::uint64_t>(sample) * fields_[array].bytes();
}

void ArrayFiles::read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const {
  for (const std::int64_t sample : samples) {
    if (sample < 0 || sample >= size_) {
      throw DataError("sample " + std::to_string(sample) + " of a data set of " + std::to_string(size_));
    }
  }
  for (std::size_t i = 0; i < samples.size();) {
    std::size_t run = 1;  // consecutive samples are read at once
    while (i + run < samples.size() && samples[i + run] == samples[i] + static_cast<std::int64_t>(run)) ++run;
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      const std::size_t bytes = fields_[a].bytes();
      arrays_[a].file->read_whole(offset_of(a, samples[i]), {outputs[a] + i * bytes, run * bytes});
    }
    i += run;
  }
}

Blocks ArrayFiles::blocks() const {
  std::size_t bytes = 0;
  for (const Field& field : fields_) bytes += field.bytes();
  return even_blocks(size_, static_cast<std::int64_t>(bytes));
}

void ArrayFiles::will_read(std::int64_t first, std::int64_t count) const {
  for (std::size_t a = 0; a < arrays_.size(); ++a) {
    arrays_[a].file->will_read(offset_of(a, first), fields_[a].bytes() * static_cast<std::size_t>(count));
  }
}

std::string ArrayFiles::where(std::int64_t sample) const {
  return arrays_.front().file->path().string() + ", offset " + std::to_string(offset_of(0, sample));
}

}  // namespace dtrain::data
