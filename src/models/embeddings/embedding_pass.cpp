// SPDX-License-Identifier: Apache-2.0
#include "models/embeddings/embedding_pass.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/example_sums.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

// Returns a random order of `count` examples, the same on all ranks.
std::vector<int32_t> random_order(base::Stream stream, int64_t count) {
  std::vector<std::pair<uint64_t, int32_t>> drawn;
  for (int64_t i = 0; i < count; ++i) drawn.emplace_back(stream.bits(uint64_t(i)), int32_t(i));
  std::sort(drawn.begin(), drawn.end());
  std::vector<int32_t> order;
  for (const auto& one : drawn) order.push_back(one.second);
  return order;
}

// Returns a view of rows of `bytes` bytes as words that an op can gather.
View as_words(const View& v, int64_t bytes) {
  if (v.type == DType::f32) return v;
  CHECK(bytes % 4 == 0, "rows of {} bytes", bytes);
  return {v.data, DType::f32, v.bytes() / 4};
}

class EmbeddingPass : public CoupledPass {
 public:
  explicit EmbeddingPass(const EmbeddingModel& model)
      : model_(model),
        separable_(dynamic_cast<const SeparableLoss*>(&model.loss())),
        student_(model.network().make_pass()) {
    if (model.teacher_plan()) teacher_ = model.network().make_pass();
  }
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const override {
    model_.prepare(batch, stream, into);
  }

  bool two_phases() const override { return !separable_; }

  void begin_step(nn::Context& ctx, int64_t global_batch) override {
    model_.loss().check_batch(global_batch);
    check_shuffle(ctx);
    start_ = ctx.arena.low();
    step_ = {.examples = global_batch,
             .views = model_.rows(),
             .teacher_views = model_.teacher_views(),
             .widths = model_.network().widths(),
             .teacher_widths = model_.network().widths(),
             .parts = {}};
    values_.clear();
    for (int64_t m = 0; m < ctx.passes; ++m) add_part(ctx);
  }

  void embed(nn::Context& ctx, const Inputs& inputs) override {
    run_forward(ctx, inputs, step_.parts[size_t(ctx.pass)]);
  }

  void form_loss(nn::Context& ctx) override {
    model_.loss().run(ctx, step_);
    model_.tell(ctx, step_);
  }

  void run(nn::Context& ctx, const Inputs& inputs, int64_t, View sums) override {
    const size_t m = size_t(ctx.pass);
    StepEmbeddings::Part& part = step_.parts[m];
    if (ctx.passes == 1) {
      run_forward(ctx, inputs, part);
      form_loss(ctx);
    } else if (separable_) {
      run_forward(ctx, inputs, part);
      separable_->form(ctx, step_, m);
    } else {
      model_.network().forward(ctx, model_.groups(&inputs), part.outputs, student_);
    }
    add_parameter_gradients(ctx, model_.loss(), part, model_.network().head().block());
    model_.network().backward(ctx, part.gradients, student_);
    ctx.run(kernels::ExampleSums{.sums = sums,
                                 .values = values_[m],
                                 .batch = ctx.batch,
                                 .columns = model_.sum_columns(),
                                 .slices = ctx.slices});
  }

  void end_step(nn::Context& ctx) override {
    if (separable_ && ctx.passes > 1) {
      separable_->finish(ctx, step_);
      model_.tell(ctx, step_);
    }
    ctx.arena.pop_low(start_);
  }

 private:
  // An order within each pass would make results depend on the number of passes of a step.
  void check_shuffle(const nn::Context& ctx) const {
    const TeacherPlan* plan = model_.teacher_plan();
    if (plan && plan->shuffles && ctx.passes > 1)
      base::fail(
          base::Exit::config,
          "model.shuffle = true draws an order of the whole global batch, which accumulation "
          "splits into {} passes; set train.micro_batch to {}, use more ranks, or set "
          "model.shuffle to false",
          ctx.passes, ctx.batch * ctx.passes);
  }
  // Makes room for the embeddings of a pass.
  void add_part(nn::Context& ctx) {
    StepEmbeddings::Part& part = step_.parts.emplace_back();
    const int64_t n = ctx.batch;
    part.first = ctx.first_example % step_.examples +
                 int64_t(step_.parts.size() - 1) * n * ctx.group->ranks_of_replica();
    for (const int64_t width : step_.widths) {
      part.outputs.push_back(ctx.arena.save(n * step_.views * width));
      part.gradients.push_back(ctx.arena.save(n * step_.views * width));
    }
    for (const int64_t width : step_.teacher_widths)
      if (step_.teacher_views > 0)
        part.teacher.push_back(ctx.arena.save(n * step_.teacher_views * width));
    const View values = values_.emplace_back(ctx.arena.save(model_.sum_columns() * n));
    part.loss = values.slice(0, n);
    for (int64_t c = 1; c < model_.sum_columns(); ++c) part.terms.push_back(values.slice(c * n, n));
    for (size_t p = 0; p < model_.loss().parameters().size(); ++p)
      part.parameters.push_back(ctx.arena.save(n));
    if (model_.loss().uses_index()) part.index = ctx.arena.save(n, DType::i32);
    if (const int64_t k = model_.loss().negatives())
      part.negatives = ctx.arena.save(n * model_.outputs() * k, DType::i32);
    if (model_.loss().label()) part.labels = ctx.arena.save(n, DType::i32);
  }

  void run_forward(nn::Context& ctx, const Inputs& inputs, StepEmbeddings::Part& part) {
    if (!part.index.none()) device::copy(part.index, inputs.at("index").device, ctx.queue);
    if (!part.negatives.none())
      device::copy(part.negatives, inputs.at("negatives").device, ctx.queue);
    if (!part.labels.none()) device::copy(part.labels, inputs.at("labels").device, ctx.queue);
    // A teacher that runs first needs no memory beside the activations of the network.
    const TeacherPlan* plan = model_.teacher_plan();
    const bool teacher_first = plan && !plan->starts_from_first_pass;
    if (teacher_first) run_teacher(ctx, inputs, part);
    model_.network().forward(ctx, model_.groups(&inputs), part.outputs, student_);
    if (plan && !teacher_first) {
      if (ctx.step == 1 && ctx.last) copy_states(ctx);
      run_teacher(ctx, inputs, part);
    }
  }

  // Sets the teacher's states to the network's states after its forward pass.
  void copy_states(nn::Context& ctx) const {
    for (const int p : model_.network_states())
      device::copy(ctx.teacher->states->next(p), ctx.states->next(p), ctx.queue);
  }

  void run_teacher(nn::Context& student, const Inputs& inputs, StepEmbeddings::Part& part) {
    const TeacherPlan& plan = *model_.teacher_plan();
    nn::Context ctx = student.of_teacher();
    ctx.train = ctx.step < plan.running_from_step;
    const device::Arena::Mark start = ctx.arena.low();
    device::Arena::Scope scope(ctx.arena);
    ImageGroup seen = model_.teacher_group(&inputs);
    std::vector<int32_t> order;
    if (plan.shuffles) {
      order = random_order(student.dropout.sub(base::stream_id("shuffle")),
                           ctx.batch * ctx.group->ranks());
      seen.images = taken(ctx, seen.images, order);
    }
    model_.network().forward(ctx, {&seen, 1}, part.teacher, teacher_);
    if (plan.shuffles) {
      std::vector<int32_t> back(order.size());
      for (size_t i = 0; i < order.size(); ++i) back[size_t(order[i])] = int32_t(i);
      for (View& output : part.teacher) device::copy(output, taken(ctx, output, back), ctx.queue);
    }
    ctx.arena.pop_low(start);
  }

  // Returns this rank's rows of the examples of all ranks in another order: row i of the batch
  // becomes row order[i] of `values`.
  static View taken(nn::Context& ctx, const View& values, const std::vector<int32_t>& order) {
    const int64_t bytes = values.bytes() / ctx.batch, ranks = ctx.group->ranks();
    const View mine = as_words(values, bytes), all = ctx.arena.temporary(mine.count * ranks),
               out = ctx.arena.temporary(mine.count);
    ctx.group->gather(mine, all, ctx.queue);
    const auto first = order.begin() + ctx.group->rank() * ctx.batch;
    const View rows = ctx.table(false, std::vector<int32_t>(first, first + ctx.batch));
    ctx.run(kernels::GatherRows{.y = out,
                                .x = all,
                                .index = rows,
                                .rows = ctx.batch,
                                .width = mine.count / ctx.batch,
                                .source_rows = ctx.batch * ranks});
    return {out.data, values.type, values.count};
  }

  const EmbeddingModel& model_;
  const SeparableLoss* separable_;  // the loss, if it is separable
  EmbeddingNetwork::Pass student_, teacher_;
  device::Arena::Mark start_{};
  StepEmbeddings step_;
  std::vector<View> values_;  // by pass: loss and terms of each example, f32 [columns, n]
};

}  // namespace

std::unique_ptr<TrainPass> make_embedding_pass(const EmbeddingModel& model) {
  return std::make_unique<EmbeddingPass>(model);
}

}  // namespace models
