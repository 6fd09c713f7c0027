// A generative adversarial network on the images of Fashion-MNIST (Goodfellow et al., arXiv:1406.2661): two models with
// an optimizer each, and two optimizer steps in a batch. Run it with
//   dtrain launch examples/gan/gan.yaml
#include <dtrain/dtrain.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace {

using torch::Tensor;

constexpr std::int64_t kSide = 28;  // pixels of an image's side
constexpr std::int64_t kPixels = kSide * kSide;

// Maps [n, noise] to images [n, kPixels] with values in [-1, 1].
torch::nn::Sequential make_generator(std::int64_t noise, std::int64_t width) {
  return torch::nn::Sequential(torch::nn::Linear(noise, width), torch::nn::BatchNorm1d(width), torch::nn::ReLU(),
                               torch::nn::Linear(width, width), torch::nn::BatchNorm1d(width), torch::nn::ReLU(),
                               torch::nn::Linear(width, kPixels), torch::nn::Tanh());
}

// Maps images [n, kPixels] to scores [n, 1], which are above 0 for images of the data set.
torch::nn::Sequential make_discriminator(std::int64_t width) {
  const auto leaky = [] { return torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)); };
  return torch::nn::Sequential(torch::nn::Linear(kPixels, width), leaky(), torch::nn::Dropout(0.3),
                               torch::nn::Linear(width, width), leaky(), torch::nn::Dropout(0.3),
                               torch::nn::Linear(width, 1));
}

class Gan : public dtrain::Trial {
 public:
  explicit Gan(dtrain::TrialContext& context)
      : context_(context),
        noise_(context.hyperparameter<std::int64_t>("noise", 64)),
        generator_(context.wrap_model("generator", make_generator(noise_, width()))),
        discriminator_(context.wrap_model("discriminator", make_discriminator(width()))) {
    const double lr = context.hyperparameter<double>("learning_rate", 2e-4);
    context.wrap_optimizer("generator", dtrain::Adam{.lr = lr, .beta1 = 0.5});
    context.wrap_optimizer("discriminator", dtrain::Adam{.lr = lr, .beta1 = 0.5});
  }

  dtrain::Loader training_loader() override { return context_.loader(read("train")); }
  dtrain::Loader validation_loader() override {
    return context_.loader(read("t10k"), {.shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const Tensor fake = generator_->forward(noise(batch.samples));

    const Tensor discriminator_loss = loss(pixels(batch), 0.9) + loss(fake.detach(), 0);
    context_.backward(discriminator_loss, {.models = {"discriminator"}});
    context_.step();

    const Tensor generator_loss = loss(fake, 1);
    context_.backward(generator_loss, {.models = {"generator"}});
    if (batches_++ % 100 == 0) {  // for TensorBoard, during the run
      const Tensor some = fake.narrow(0, 0, std::min<std::int64_t>(fake.size(0), 16));
      context_.log_image("generated", (some.view({-1, 1, kSide, kSide}) + 1) / 2);
    }
    return {{"discriminator_loss", discriminator_loss}, {"generator_loss", generator_loss}};
  }

  // Returns the shares of real and of generated images that the discriminator classifies correctly.
  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const Tensor of_real = discriminator_->forward(pixels(batch)) > 0;
    const Tensor of_fake = discriminator_->forward(generator_->forward(noise(batch.samples))) <= 0;
    return {{"real_found", of_real.to(torch::kFloat64).mean()}, {"fake_found", of_fake.to(torch::kFloat64).mean()}};
  }

  // Writes a picture of 8 x 8 images beside the weights, in PGM, a format that every viewer reads.
  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override {
    const torch::NoGradGuard no_grad;
    generator_->eval();
    torch::manual_seed(0);
    constexpr std::int64_t kRows = 8;
    const Tensor images = generator_->forward(noise(kRows * kRows)).view({kRows, kRows, kSide, kSide});
    const Tensor picture = ((images.permute({0, 2, 1, 3}) + 1) * 127.5).to(torch::kUInt8).contiguous().cpu();
    const auto file = folder / "samples.pgm";
    std::ofstream out(file, std::ios::binary);
    out << "P5 " << kRows * kSide << ' ' << kRows * kSide << " 255\n";
    out.write(static_cast<const char*>(picture.const_data_ptr()), static_cast<std::streamsize>(picture.nbytes()));
    if (!out.flush()) throw dtrain::Error("cannot write " + file.string());
    return {file};
  }

 private:
  std::int64_t width() const { return context_.hyperparameter<std::int64_t>("width", 256); }
  Tensor noise(std::int64_t samples) const { return torch::randn({samples, noise_}, context_.device()); }
  static Tensor pixels(const dtrain::Batch& batch) {
    return batch["image"].flatten(1).to(torch::kFloat).div_(127.5).sub_(1);
  }
  Tensor loss(const Tensor& images, double target) {
    const Tensor scores = discriminator_->forward(images);
    return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, target));
  }
  std::shared_ptr<dtrain::data::Dataset> read(const std::string& part) {
    const std::string folder = context_.data().value("folder", "/usr/share/datasets/fashion-mnist");
    return context_.read_idx(folder + "/" + part + "-images-idx3-ubyte.gz",
                             folder + "/" + part + "-labels-idx1-ubyte.gz");
  }

  dtrain::TrialContext& context_;
  const std::int64_t noise_;
  std::int64_t batches_ = 0;  // number of batches of this process
  torch::nn::Sequential generator_, discriminator_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<Gan>(argc, argv);
}
