// What one end of a handshake hears, without a connection: the listening end, or the connecting one (bit 0 of the first
// byte); each line is a message. A line that begins with @ has the proof in its place that an end with the secret
// gives; ^ has one of another label.
#include <string>

#include "control_peer.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/handshake.h"

void dtrain::fuzz::handshake(Input input) {
  using comm::Handshake;
  if (input.empty()) return;
  const bool connects = (input[0] & 1) != 0;
  const std::string secret = control_options(0).secret;
  const std::string text(input.begin() + 1, input.end());
  Handshake end = connects ? Handshake::connecting(secret, introduction(1))
                           : Handshake::listening(secret, introduction(0), [](const comm::Introduction& other) {
                               return other.rank == 1 ? std::string() : "no such rank";
                             });
  std::string said = end.begin();
  for (const std::string& line : dtrain::split(text, '\n')) {
    if (end.state() != Handshake::State::kRunning) break;
    std::string message = line;
    const std::string frame = greeting(line);
    (void)end.length_of(reinterpret_cast<const unsigned char*>(frame.data()));
    if (end.state() != Handshake::State::kRunning) break;
    if (line.starts_with('@') || line.starts_with('^')) {
      const std::string words = line.substr(1);
      const bool refusal = words.find("refused") != std::string::npos;
      const char* const label = line[0] == '^' ? "key to the listener"
                                : !connects    ? "hello"
                                : refusal      ? "refusal"
                                               : "welcome";
      message = comm::hmac_sha256(secret, std::string("dtrain-2 ") + label + '\0' + said + greeting(words)) + words;
    } else {
      said += greeting(line);
    }
    const std::string answer = end.receive(message);
    constexpr std::size_t kProof = 32;
    if (answer.size() > comm::kHandshakeHeaderBytes + kProof) {
      said += greeting(std::string_view(answer).substr(comm::kHandshakeHeaderBytes + kProof));
    }
  }
  if (end.state() == Handshake::State::kProven && end.keys().send.size() != 32) __builtin_trap();
}
