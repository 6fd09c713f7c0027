// A cluster file.
#include "dtrain/config/cluster.h"

#include "support.h"

void dtrain::fuzz::cluster(Input input) {
  const InputFile file(input);
  try {
    (void)config::read_cluster(file.path());
  } catch (const config::ConfigErrors&) {
  }
}
