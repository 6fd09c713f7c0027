#include "control/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "control/frame.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::comm {
namespace {

std::string proof(const std::string& secret, const char* side, const Handshake& handshake) {
  // A JSON array is unambiguous for any content of the strings.
  const std::string text =
      to_line(Json::array({"dtrain-control", kControlProtocol, side, handshake.session, handshake.generation,
                           handshake.rank, handshake.size, handshake.server_nonce, handshake.client_nonce}));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (!HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
            reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &length)) {
    throw CommError("HMAC-SHA256 is not available in this libcrypto");
  }
  return to_hex({reinterpret_cast<const char*>(digest), length});
}

}  // namespace

std::string client_proof(const std::string& secret, const Handshake& handshake) {
  return proof(secret, "client", handshake);
}

std::string server_proof(const std::string& secret, const Handshake& handshake) {
  return proof(secret, "server", handshake);
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace dtrain::comm
