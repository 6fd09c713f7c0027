// The entry functions of the fuzz targets, one file each: whatever bytes come, a target returns, or throws what nobody
// expects (a finding). libFuzzer calls them (fuzzer_main.cpp), and the ordinary build replays seeds and former crashes
// through them (replay_test.cpp). One thread at a time.
#pragma once

#include <cstdint>
#include <span>

namespace dtrain::fuzz {

using Input = std::span<const std::uint8_t>;

void cluster(Input input);
void control_client(Input input);
void control_server(Input input);
void csv(Input input);
void dump(Input input);
void experiment(Input input);
void exported(Input input);  // with libtorch alone
void handshake(Input input);
void idx(Input input);
void ledger(Input input);
void loader_state(Input input);
void manifest(Input input);
void npy(Input input);
void picture(Input input);
void run_files(Input input);
void safetensors(Input input);
void shards(Input input);
void store_client(Input input);
void store_server(Input input);
void tokens(Input input);
void trace(Input input);

}  // namespace dtrain::fuzz
