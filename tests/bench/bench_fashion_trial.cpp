// The Fashion-MNIST example, making its steps on command (stepper.h): what bench_profile_overhead times.
#include "fashion_cnn.h"
#include "stepper.h"

namespace {

class SteppedFashionCnn final : public FashionCnn {
 public:
  explicit SteppedFashionCnn(dtrain::TrialContext& context) : FashionCnn(context), context_(context) {}

  dtrain::Loader training_loader() override {
    const std::string base = context_.data().at("fifo").get<std::string>() + std::to_string(context_.rank());
    return std::make_shared<dtrain::bench::SteppedSource>(FashionCnn::training_loader(), base + ".commands",
                                                          base + ".replies");
  }
  dtrain::Loader validation_loader() override { return nullptr; }

 private:
  dtrain::TrialContext& context_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<SteppedFashionCnn>(argc, argv);
}
