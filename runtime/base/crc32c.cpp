#include "dtrain/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace dtrain {
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
#define DTRAIN_TARGET_CRC32 __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#define DTRAIN_TARGET_CRC32 __attribute__((target("+crc")))
#endif

#if defined(DTRAIN_TARGET_CRC32)

DTRAIN_TARGET_CRC32 inline std::uint64_t add_word(std::uint64_t crc, std::uint64_t word) {
#if defined(__x86_64__)
  return _mm_crc32_u64(crc, word);
#else
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
#endif
}

DTRAIN_TARGET_CRC32 inline std::uint32_t add_byte(std::uint32_t crc, unsigned char byte) {
#if defined(__x86_64__)
  return _mm_crc32_u8(crc, byte);
#else
  return __crc32cb(crc, byte);
#endif
}

// The instruction has a latency of three cycles and can begin in every cycle: three streams at once keep it busy.
constexpr std::size_t kStream = 8192;
// Prefetch distance in bytes: processors do not detect three streams by themselves.
constexpr std::size_t kAhead = 2048;
constexpr std::size_t kCacheLine = 64;  // of the cache

// Tables, one for each byte of a checksum, that append kStream zero bytes. This change is linear over GF(2).
std::array<ByteTable, 4> make_skip_tables() {
  std::array<std::uint32_t, 32> images{};  // image of each single bit
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

DTRAIN_TARGET_CRC32 std::uint32_t update_streams(const unsigned char* data, std::size_t size, std::uint32_t crc) {
  static const std::array<ByteTable, 4> skip = make_skip_tables();
  std::uint64_t first = crc;
  for (; size >= 3 * kStream; data += 3 * kStream, size -= 3 * kStream) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t line = 0; line < kStream; line += kCacheLine) {
      for (std::size_t stream = 0; stream < 3; ++stream) __builtin_prefetch(data + stream * kStream + line + kAhead);
      for (std::size_t at = line; at < line + kCacheLine; at += 8) {
        first = add_word(first, load_word(data + at));
        second = add_word(second, load_word(data + kStream + at));
        third = add_word(third, load_word(data + 2 * kStream + at));
      }
    }
    first = skip_stream(skip, first) ^ second;
    first = skip_stream(skip, first) ^ third;
  }
  for (; size >= 8; data += 8, size -= 8) first = add_word(first, load_word(data));
  auto result = static_cast<std::uint32_t>(first);
  for (; size > 0; ++data, --size) result = add_byte(result, *data);
  return result;
}

#endif

#if defined(__x86_64__)

// Returns x to the power of n, modulo the polynomial; bit i is the coefficient of x^(31-i).
constexpr std::uint32_t power_of_x(int n) {
  std::uint32_t value = 0x80000000;
  for (int i = 0; i < n; ++i) value = (value & 1) ? (value >> 1) ^ kPolynomial : value >> 1;
  return value;
}

#define DTRAIN_TARGET_AVX512 __attribute__((target("sse4.2,avx512f,avx512vl,vpclmulqdq")))

constexpr std::size_t kFolded = 4 * sizeof(__m512i);  // bytes that are folded at once

DTRAIN_TARGET_AVX512 __m512i load(const unsigned char* at) {
  return _mm512_loadu_si512(at);
}

DTRAIN_TARGET_AVX512 __m512i fold(__m512i value, __m512i factors, const unsigned char* next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, factors, 0x00),
                                   _mm512_clmulepi64_epi128(value, factors, 0x11), load(next), kXorOfThree);
}

// Carry-less multiplication moves 16 bytes, the polynomial H x^64 + L with H first in memory, forward by kFolded bytes
// without changing the checksum: H x^(64+d) + L x^d with d in bits, each power modulo the polynomial. The product of
// two 64-bit numbers in reflected order is too large by one factor x. (Gopal et al., Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction, 2009.)
DTRAIN_TARGET_AVX512 std::uint32_t update_avx512(const unsigned char* data, std::size_t size, std::uint32_t crc) {
  if (size < 2 * kFolded) return update_streams(data, size, crc);
  constexpr int kBits = 8 * kFolded;
  constexpr auto kOfFirst = static_cast<long long>(std::uint64_t{power_of_x(kBits + 63)} << 32);
  constexpr auto kOfSecond = static_cast<long long>(std::uint64_t{power_of_x(kBits - 1)} << 32);
  constexpr std::size_t kStep = sizeof(__m512i);
  const __m512i factors = _mm512_broadcast_i32x4(_mm_set_epi64x(kOfSecond, kOfFirst));
  const __m512i before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  __m512i a = _mm512_xor_si512(load(data), before), b = load(data + kStep);
  __m512i c = load(data + 2 * kStep), d = load(data + 3 * kStep);
  for (data += kFolded, size -= kFolded; size >= kFolded; data += kFolded, size -= kFolded) {
    a = fold(a, factors, data);
    b = fold(b, factors, data + kStep);
    c = fold(c, factors, data + 2 * kStep);
    d = fold(d, factors, data + 3 * kStep);
  }
  std::array<unsigned char, kFolded> rest;
  _mm512_storeu_si512(rest.data(), a);
  _mm512_storeu_si512(rest.data() + kStep, b);
  _mm512_storeu_si512(rest.data() + 2 * kStep, c);
  _mm512_storeu_si512(rest.data() + 3 * kStep, d);
  return update_streams(data, size, update_streams(rest.data(), rest.size(), 0));
}

#endif

}  // namespace

std::vector<Crc32cVersion> crc32c_versions() {
  std::vector<Crc32cVersion> versions{{"portable", update_portable}};
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("sse4.2")) return versions;
  versions.push_back({"SSE 4.2", update_streams});
  const bool folds =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
  if (folds) versions.push_back({"AVX-512", update_avx512});
#elif defined(__aarch64__)
  if ((::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) versions.push_back({"CRC32", update_streams});
#endif
  return versions;
}

std::uint32_t Crc32cVersion::operator()(std::span<const std::byte> bytes, std::uint32_t before) const {
  return ~update(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), ~before);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  static const Crc32cVersion fastest = crc32c_versions().back();
  return fastest(bytes, before);
}

std::uint32_t crc32c(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text)));
}

}  // namespace dtrain
