#include "crc32c.h"

#include <array>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace dtrain::checkpoint {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41, its bits reversed

using ByteTable = std::array<std::uint32_t, 256>;

// table[k][b]: the checksum of byte b followed by k zero bytes.
constexpr std::array<ByteTable, 8> make_slicing_tables() {
  std::array<ByteTable, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) ? (value >> 1) ^ kPolynomial : value >> 1;
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}
constexpr std::array<ByteTable, 8> kSlicing = make_slicing_tables();

std::uint64_t load_word(const unsigned char* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint32_t update_portable(const unsigned char* data, std::size_t size, std::uint32_t crc) {
  for (; size >= 8; data += 8, size -= 8) {
    const std::uint64_t word = load_word(data) ^ crc;
    crc = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) crc ^= kSlicing[7 - byte][(word >> (8 * byte)) & 0xff];
  }
  for (; size > 0; ++data, --size) crc = (crc >> 8) ^ kSlicing[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__)

// The instruction has a latency of three cycles and one can begin in each cycle: three streams at once keep it busy.
constexpr std::size_t kStream = 8192;

// What kStream zero bytes do to a checksum, as a table for each of its bytes. It is linear over GF(2).
std::array<ByteTable, 4> make_skip_tables() {
  std::array<std::uint32_t, 32> images{};  // of each single bit
  for (std::size_t bit = 0; bit < images.size(); ++bit) {
    std::uint32_t value = 1u << bit;
    for (std::size_t count = 0; count < kStream; ++count) value = (value >> 8) ^ kSlicing[0][value & 0xff];
    images[bit] = value;
  }
  std::array<ByteTable, 4> tables{};
  for (std::size_t position = 0; position < tables.size(); ++position) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if (byte >> bit & 1) tables[position][byte] ^= images[8 * position + bit];
      }
    }
  }
  return tables;
}

std::uint32_t skip_stream(const std::array<ByteTable, 4>& tables, std::uint64_t crc) {
  return tables[0][crc & 0xff] ^ tables[1][crc >> 8 & 0xff] ^ tables[2][crc >> 16 & 0xff] ^ tables[3][crc >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) std::uint32_t update_sse42(const unsigned char* data, std::size_t size,
                                                             std::uint32_t crc) {
  static const std::array<ByteTable, 4> skip = make_skip_tables();
  std::uint64_t first = crc;
  for (; size >= 3 * kStream; data += 3 * kStream, size -= 3 * kStream) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < kStream; at += 8) {
      first = _mm_crc32_u64(first, load_word(data + at));
      second = _mm_crc32_u64(second, load_word(data + kStream + at));
      third = _mm_crc32_u64(third, load_word(data + 2 * kStream + at));
    }
    first = skip_stream(skip, first) ^ second;
    first = skip_stream(skip, first) ^ third;
  }
  for (; size >= 8; data += 8, size -= 8) first = _mm_crc32_u64(first, load_word(data));
  auto result = static_cast<std::uint32_t>(first);
  for (; size > 0; ++data, --size) result = _mm_crc32_u8(result, *data);
  return result;
}

#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before) {
  return ~update_portable(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), ~before);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) {
    return ~update_sse42(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), ~before);
  }
#endif
  return crc32c_portable(bytes, before);
}

std::uint32_t crc32c(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text)));
}

std::string checksum_text(std::uint32_t checksum) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", checksum);
  return text;
}

}  // namespace dtrain::checkpoint
