// How does libtorch ask for devices, streams and events?
#pragma once

namespace dtrain::test::fake_gpu {

void register_guard();

}  // namespace dtrain::test::fake_gpu
