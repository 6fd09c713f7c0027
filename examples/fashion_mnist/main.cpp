// Trains the CNN of fashion_cnn.h data-parallel. Run it with
//   dtrain launch configs/fashion_mnist.yaml
#include "fashion_cnn.h"

int main(int argc, char** argv) {
  return dtrain::run_trial<FashionCnn>(argc, argv);
}
