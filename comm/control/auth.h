// Proves that both ends of a control connection know the run's secret, without sending it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::comm {

// The input of both proofs: everything that the two sides have sent, so no part can be replayed or swapped. Each side
// contributes a nonce.
struct Handshake {
  std::string session;
  std::int64_t generation = 0;
  std::int64_t rank = 0;
  std::int64_t size = 0;
  std::string server_nonce;
  std::string client_nonce;
};

// HMAC-SHA256, in hexadecimal. The proofs of the two sides differ, so neither can be reflected as the other.
std::string client_proof(const std::string& secret, const Handshake& handshake);
std::string server_proof(const std::string& secret, const Handshake& handshake);

// Takes the same time for every position of the first difference.
bool equal_secrets(std::string_view a, std::string_view b);

}  // namespace dtrain::comm
