// TLS 1.3 on a connected TCP socket, under a key that both ends know, without certificates (an external pre-shared key
// with an ephemeral key exchange: who learns the key later reads nothing of earlier connections). Nobody on the path
// can read or change what is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <openssl/types.h>

namespace dtrain::comm {

// Bytes that one end sends under one key. AES-GCM may protect 2^24.5 full records with a key, some 390 GB (RFC 8446,
// 5.5). ChaCha20-Poly1305, the other suite, has no such limit; its keys are renewed all the same.
inline constexpr std::uint64_t kBytesOfAKey = 64'000'000'000;

// One connection. The socket is non-blocking, belongs to the caller, and outlives this object. One thread at a time. No
// call raises SIGPIPE.
class Tls {
 public:
  enum class Side { kConnecting, kListening };
  // The outcome of a call. What is wanted must be possible on the socket before the same call is made again.
  enum class Want { kNothing, kRead, kWrite, kEnd };
  struct Outcome {
    Want want = Want::kNothing;
    std::size_t bytes = 0;
    std::string error;  // for kEnd: what is wrong; empty: the connection has ended
    int code = 0;       // for kEnd: errno of a broken connection, or 0
  };

  // `key` is the same 32 bytes on both ends. The keys of the connection follow from it; after about `bytes_of_a_key`
  // bytes this end renews the one with which it sends. CommError where libssl does not offer TLS 1.3.
  Tls(int fd, Side side, std::string key, std::uint64_t bytes_of_a_key = kBytesOfAKey);

  Outcome shake_hands();
  // At least one byte, unless something is wanted first.
  Outcome read(void* buffer, std::size_t size);
  Outcome write(const void* buffer, std::size_t size);

  const std::string& key() const { return key_; }  // for the callbacks of libssl
  int keys_renewed() const { return keys_renewed_; }

 private:
  struct Free {
    void operator()(SSL* ssl) const;
  };
  Outcome outcome(int result, std::size_t bytes);
  void renew_key();

  std::string key_;
  const std::uint64_t bytes_of_a_key_;
  std::uint64_t sent_with_key_ = 0;
  int keys_renewed_ = 0;
  std::unique_ptr<SSL, Free> ssl_;
};

}  // namespace dtrain::comm
