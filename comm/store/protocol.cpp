#include "store/protocol.h"

#include "dtrain/base/error.h"

namespace dtrain::comm::store {
namespace {

constexpr std::uint64_t kMostKeys = 16;

// Reads what has come. Once bytes are missing, all that follows is missing, too.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t integer(std::size_t bytes) { return integer_of(take(bytes)); }
  std::string text() {
    const std::uint64_t size = integer(8);
    if (size > kLongestKey) throw DataError("a key of " + std::to_string(size) + " bytes");
    return std::string(take(static_cast<std::size_t>(size)));
  }
  bool complete() const { return complete_; }
  std::size_t left() const { return rest_.size(); }

 private:
  std::string_view take(std::size_t bytes) {
    if (!complete_ || bytes > rest_.size()) {
      complete_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  bool complete_ = true;
};

void read_arguments(Reader& reader, Request& request) {
  switch (request.query) {
    case Query::kValidate:
    case Query::kPing:
      request.number = static_cast<std::uint32_t>(reader.integer(4));
      return;
    case Query::kGet:
      request.keys = {reader.text()};
      return;
    case Query::kCheck:
    case Query::kWait: {
      const std::uint64_t count = reader.integer(8);
      if (count > kMostKeys) throw DataError(std::to_string(count) + " keys");
      for (std::uint64_t i = 0; i < count && reader.complete(); ++i) request.keys.push_back(reader.text());
      return;
    }
    case Query::kCancelWait:
      return;
    case Query::kSet:
    case Query::kDeleteKey:
      break;
  }
  throw DataError("a request of type " + std::to_string(static_cast<int>(request.query)));
}

}  // namespace

std::string wire_key(const std::string& key) {
  if (key.size() < kLongestKey) return "/" + key;
  throw CommError("a key of " + std::to_string(key.size()) + " bytes is too long for the store: at most " +
                  std::to_string(kLongestKey - 1) + " are allowed");
}

void check_value(const std::string& value) {
  if (value.size() <= kLongestValue) return;
  throw CommError("a value of " + std::to_string(value.size()) + " bytes is too long for the store: at most " +
                  std::to_string(kLongestValue) + " are allowed");
}

std::string integer_bytes(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}

std::uint64_t integer_of(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

std::string text_bytes(std::string_view text) {
  return integer_bytes(text.size(), 8).append(text);
}

std::optional<Request> take_request(std::string& received) {
  Reader reader(received);
  Request request;
  request.query = static_cast<Query>(reader.integer(1));
  if (!reader.complete()) return std::nullopt;
  read_arguments(reader, request);
  if (reader.complete()) {
    received.erase(0, received.size() - reader.left());
    return request;
  }
  if (received.size() >= kLongestRequest) throw DataError("a request of more than 16 KiB");
  return std::nullopt;
}

}  // namespace dtrain::comm::store
