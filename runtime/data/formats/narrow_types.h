// Element types of files that batches do not have: int8, int16 and uint16 are read as int32, uint32 as int64, float16
// and bfloat16 as float32, without a loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

enum class NarrowType : std::uint8_t { kNone, kInt8, kInt16, kUint16, kUint32, kFloat16, kBfloat16 };

std::size_t size_of(NarrowType type);    // bytes; 0 for kNone
ElementType wide_type(NarrowType type);  // not of kNone

// `to` has room for as many wide elements as `from` has narrow ones.
void widen(NarrowType type, std::span<const std::byte> from, std::byte* to);

// Returns the field of the bytes in the file, for code that reads them.
Field bytes_of(const Field& field, NarrowType type);

// Widens samples of `narrow`, whose fields are bytes_of() of `fields` and `types`. `types`: one for each field.
std::shared_ptr<Dataset> widened(std::shared_ptr<Dataset> narrow, std::vector<Field> fields,
                                 std::vector<NarrowType> types);

}  // namespace dtrain::data
