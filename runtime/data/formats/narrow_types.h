// Element types that files have and batches do not: int8, int16, uint16 and uint32 are read as int32 or int64, float16
// and bfloat16 as float32, none with a loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

enum class NarrowType : std::uint8_t { kNone, kInt8, kInt16, kUint16, kUint32, kFloat16, kBfloat16 };

std::size_t size_of(NarrowType type);    // of kNone: 0
ElementType wide_type(NarrowType type);  // not of kNone

// `to` has room for as many wide elements as `from` has narrow ones.
void widen(NarrowType type, std::span<const std::byte> from, std::byte* to);

// The field as its bytes lie in the file, for what reads them.
Field bytes_of(const Field& field, NarrowType type);

// Reads `narrow`, whose fields with a type are bytes_of() those of `fields`. `types`: one for each field.
std::shared_ptr<Dataset> widened(std::shared_ptr<Dataset> narrow, std::vector<Field> fields,
                                 std::vector<NarrowType> types);

}  // namespace dtrain::data
