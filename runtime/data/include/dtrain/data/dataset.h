// The source of a loader's samples. A data set is immutable, and loaders share it through a shared_ptr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dtrain::data {

enum class ElementType : std::uint8_t { kUint8, kInt32, kInt64, kFloat32, kFloat64 };
std::size_t size_of(ElementType type);

// One tensor of a sample. `shape` does not include the batch dimension (empty: a scalar).
struct Field {
  std::string name;
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
  std::size_t bytes() const;
};

// The loader's thread calls read(), which must be thread safe. Errors are DataError.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual const std::vector<Field>& fields() const = 0;
  // Writes field f of samples[i] to outputs[f][i * fields()[f].bytes() …]. There is one output for each field; samples
  // are from 0 to size() - 1.
  virtual void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const = 0;
};

}  // namespace dtrain::data
