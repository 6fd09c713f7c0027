// bench_control [--json]: what the protection of the control plane costs, on one host: a seal and its check by message
// size, a handshake, and a rank's question to rank 0 (there and back) with proof and with TLS. Microseconds, medians.
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "control/protocol.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/handshake.h"
#include "harness/run_ranks.h"

namespace {

using namespace dtrain;

double median_us(int runs, const std::function<void()>& work) {
  const SystemClock clock;
  std::vector<Nanoseconds> times;
  for (int i = 0; i < runs; ++i) {
    const Nanoseconds start = clock.monotonic();
    work();
    times.push_back(clock.monotonic() - start);
  }
  return static_cast<double>(median_high(times).count()) / 1e3;
}

double seal_us(std::size_t bytes) {
  comm::FrameSeal out(std::string(32, 'k'));
  comm::FrameSeal in(std::string(32, 'k'));
  const std::string payload(bytes, 'x');
  return median_us(bytes < 100'000 ? 5'000 : 200, [&] {
    const std::string frame = out.seal(payload);
    in.open(reinterpret_cast<const unsigned char*>(frame.data()),
            std::string_view(frame).substr(comm::kFrameHeaderBytes, bytes),
            std::string_view(frame).substr(comm::kFrameHeaderBytes + bytes));
  });
}

double handshake_us() {
  const comm::Introduction own{.purpose = "control", .session = "run", .size = 2, .rank = 1, .host = {}};
  const std::string secret(32, 's');
  return median_us(2'000, [&] {
    auto client = comm::Handshake::connecting(secret, own);
    auto server = comm::Handshake::listening(secret, own, {});
    const auto message = [](const std::string& frame) { return frame.substr(comm::kHandshakeHeaderBytes); };
    client.receive(message(server.receive(message(client.receive(message(server.begin()))))));
    (void)client.keys();
    (void)server.keys();
  });
}

Json plane_us(comm::Security security) {
  test::TestWorld world(2);
  world.security = security;
  std::vector<double> connects;
  for (int i = 0; i < 21; ++i) {
    comm::ControlEndpoint endpoint;
    const auto rank_0 = comm::ControlPlane::serve(world.control_options(0), {}, &endpoint);
    connects.push_back(median_us(1, [&] { (void)comm::ControlPlane::connect(world.control_options(1), endpoint); }));
  }
  comm::ControlEndpoint endpoint;
  const auto rank_0 = comm::ControlPlane::serve(world.control_options(0), {}, &endpoint);
  const auto client = comm::ControlPlane::connect(world.control_options(1), endpoint);
  rank_0->set("small", "value");
  rank_0->set("large", std::string(900'000, 'x'));
  const double small = median_us(3'000, [&] { (void)client->get("small"); });
  const double large = median_us(100, [&] { (void)client->get("large"); });
  return {{"connect_and_leave_us", median_high(connects)}, {"question_us", small}, {"question_900_kB_us", large}};
}

}  // namespace

int main(int argc, char** argv) {
  Json result;
  for (const std::size_t bytes : {100, 10'000, 1'000'000}) {
    result["seal_and_check_us"][std::to_string(bytes)] = seal_us(bytes);
  }
  result["handshake_both_ends_us"] = handshake_us();
  result["proof"] = plane_us(comm::Security::kProof);
  result["tls"] = plane_us(comm::Security::kTls);
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  std::printf("%s\n", result.dump(json ? -1 : 2).c_str());
  return 0;
}
