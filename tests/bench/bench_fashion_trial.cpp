// The Fashion-MNIST example, making its steps on command (stepper.h): what bench_profile_overhead times.
#include "dtrain/profile/recorder.h"
#include "dtrain/rank/rank_session.h"
#include "fashion_cnn.h"
#include "stepper.h"

namespace {

class SteppedFashionCnn final : public FashionCnn {
 public:
  explicit SteppedFashionCnn(dtrain::TrialContext& context) : FashionCnn(context), context_(context) {}

  dtrain::Loader training_loader() override {
    const std::string base = context_.data().at("fifo").get<std::string>() + std::to_string(context_.rank());
    const auto set_mode = [&recorder = context_.session().recorder()](const std::string& mode) {
      mode == "on" ? recorder.resume() : recorder.pause();
    };
    return std::make_shared<dtrain::bench::SteppedSource>(FashionCnn::training_loader(), base + ".commands",
                                                          base + ".replies", set_mode);
  }
  dtrain::Loader validation_loader() override { return nullptr; }

 private:
  dtrain::TrialContext& context_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<SteppedFashionCnn>(argc, argv);
}
