// The messages of PyTorch's TCPStore, the same from libtorch 2.11 to 2.15 and with both of its servers. A client begins
// with kValidate, then asks and awaits each answer. Integers are little-endian; a text is its length (8 bytes) and its
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::comm::store {

inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// The requests that ranks make, and what follows each.
enum class Query : std::uint8_t {
  kValidate = 0,     // magic (4 bytes); no answer
  kSet = 1,          // key, value; no answer
  kGet = 3,          // key; answer: the value
  kCheck = 5,        // number of keys (8 bytes), keys; answer: kAllThere or kMissing
  kWait = 6,         // as kCheck; answer: kAllThere once all are set
  kDeleteKey = 8,    // key; answer: the number of deleted keys (8 bytes)
  kCancelWait = 12,  // answer: kMissing
  kPing = 13,        // number (4 bytes); answer: the number
};
inline constexpr char kAllThere = 0;
inline constexpr char kMissing = 1;

inline constexpr std::size_t kLongestKey = 8u << 10;
inline constexpr std::size_t kLongestValue = 1u << 20;
inline constexpr std::size_t kLongestRequest = 16u << 10;  // that rank 0 accepts

// Returns the key as it travels: PyTorch's own clients put a slash before each. CommError if it is too long.
std::string wire_key(const std::string& key);
// CommError if the value is too long.
void check_value(const std::string& value);

std::string integer_bytes(std::uint64_t value, std::size_t bytes);
std::uint64_t integer_of(std::string_view bytes);
std::string text_bytes(std::string_view text);

struct Request {
  Query query = Query::kPing;
  std::uint32_t number = 0;  // of kValidate and kPing
  std::vector<std::string> keys;
};

// Removes the first request from `received` and returns it; empty: a part of it has yet to come. DataError: it is none
// of those that read the store, or too long.
std::optional<Request> take_request(std::string& received);

}  // namespace dtrain::comm::store
