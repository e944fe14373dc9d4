// SPDX-License-Identifier: Apache-2.0
#include "host/mfu.hpp"

#include <cctype>
#include <set>

#include "base/span.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "host/machine_limits.hpp"
#include "kernels/dispatch.hpp"

namespace host {

void ProfileOptions::bind(config::Table& t) {
  t.key("peak_tflops", peak_tflops,
        "dense peak of one GPU (on CPUs: of one rank) that MFU is measured against; 0 = GPUs by "
        "their data sheets, CPUs measured")
      .min(0)
      .on_resume(config::OnResume::may_change);
  t.key("forbid_waits", forbid_waits,
        "for debugging: ends the run if the host waits for its GPU within a step, from a job's "
        "third step on; exchanges through host memory are allowed to wait")
      .on_resume(config::OnResume::may_change);
}

int64_t hardware_flops(const device::Queue& queue) {
  int64_t sum = 0;
  for (kernels::Op op :
       {kernels::Op::gemm, kernels::Op::attention_forward, kernels::Op::attention_backward})
    sum += queue.costs()[size_t(op)].flops;
  return sum;
}

namespace {

// Peaks from NVIDIA's data sheets, without sparsity. A figure that is given only with sparsity is
// halved. A GPU's row is the first one whose words are all in its name.
struct Listed {
  const char* words;
  double half, tf32, f32;  // TFLOP/s; half: bf16 and fp16
};
constexpr Listed kListed[] = {
    {"GB200", 2500, 1250, 80},      {"B200", 2250, 1125, 75},       {"B100", 1750, 875, 60},
    {"GH200", 989.4, 494.7, 66.9},  {"H200 NVL", 835.5, 417.5, 60}, {"H200", 989.4, 494.7, 66.9},
    {"H100 NVL", 835.5, 417.5, 60}, {"H100 PCIe", 756, 378, 51.2},  {"H100", 989.4, 494.7, 66.9},
    {"H800 PCIe", 756, 378, 51.2},  {"H800", 989.4, 494.7, 66.9},   {"H20", 148, 74, 44},
    {"A100", 312, 156, 19.5},       {"A800", 312, 156, 19.5},       {"A40", 149.7, 74.8, 37.4},
    {"A30", 165, 82, 10.3},         {"A10", 125, 62.5, 31.2},       {"L40S", 362, 183, 91.6},
    {"L40", 181, 90.5, 90.5},       {"L4", 121, 60, 30.3},
};

// Returns the words of a name: "NVIDIA A100-SXM4-80GB" has NVIDIA, A100, SXM4 and 80GB.
std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> out;
  std::string word;
  for (char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)))
      word += char(std::toupper(static_cast<unsigned char>(c)));
    else if (!word.empty()) {
      out.insert(word);
      word.clear();
    }
  }
  return out;
}

}  // namespace

double listed_peak_tflops(const std::string& gpu, Compute compute) {
  const std::set<std::string> words = words_of(gpu);
  if (!words.count("NVIDIA") || words.count("MIG")) return 0;
  for (const Listed& row : kListed) {
    bool all = true;
    for (const std::string& word : words_of(row.words)) all = all && words.count(word);
    if (all)
      return compute == Compute::f32 ? row.f32 : compute == Compute::tf32 ? row.tf32 : row.half;
  }
  return 0;
}

Peak peak_of_gpus(const std::vector<RankGpu>& ranks, Compute compute, double peak_tflops) {
  std::set<std::string> seen;
  Peak peak;
  for (const RankGpu& r : ranks) {
    if (!seen.insert(r.uuid).second) continue;
    double tflops = peak_tflops > 0 ? peak_tflops : listed_peak_tflops(r.name, compute);
    if (tflops == 0)
      return {0, fmt::format("MFU unknown: this program has no data sheet of \"{}\"; set its peak "
                             "in profile.peak_tflops",
                             r.name)};
    peak.flops += tflops * 1e12;
  }
  peak.text = fmt::format("MFU against {:.4g} TFLOP/s ({} x {}, {} dense, {})", peak.flops / 1e12,
                          seen.size(), ranks[0].name, name_of(compute),
                          peak_tflops > 0 ? "profile.peak_tflops" : "data sheet");
  return peak;
}

std::string utilisation_note(double mfu, double hfu, double flops, bool measured) {
  if (!(mfu > 1) && !(hfu > 1)) return "";
  if (!(hfu > 1))
    return fmt::format(
        "mfu={:.1f}% counts products of padding that this step did not compute; those that ran are "
        "hfu={:.1f}%",
        100 * mfu, 100 * hfu);
  return fmt::format(
      "mfu={:.1f}% hfu={:.1f}%: this step computed at {:.4g} GFLOP/s, more than the peak of {:.4g} "
      "GFLOP/s{}",
      100 * mfu, 100 * hfu, hfu * flops / 1e9, flops / 1e9,
      measured ? " that was measured at the start. If other programs used the cores then, both "
                 "figures are too high; profile.peak_tflops sets the peak"
               : ": check profile.peak_tflops");
}

Peak find_peak(comm::Comm& world, device::Kind kind, int threads, Compute compute,
               const ProfileOptions& options, double seconds) {
  const base::Span span("find the peak");
  if (kind == device::Kind::cuda) {
    std::vector<RankGpu> ranks;
    for (const std::string& text :
         world.gather_text(device::gpu_name() + "\n" + device::gpu_uuid())) {
      std::vector<std::string> parts = base::split(text, '\n');
      ranks.push_back({parts.at(0), parts.at(1)});
    }
    return peak_of_gpus(ranks, compute, options.peak_tflops);
  }
  const bool given = options.peak_tflops > 0;
  device::DType type = compute == Compute::bf16 ? device::DType::bf16 : device::DType::f32;
  double mine = given ? options.peak_tflops * 1e12 : measure_peak(world, threads, type, seconds);
  Peak peak{double(world.sum(int64_t(mine / 1e6))) * 1e6, ""};
  peak.text =
      fmt::format("MFU against {:.0f} GFLOP/s ({})", peak.flops / 1e9,
                  given ? "profile.peak_tflops"
                        : fmt::format("{} products, measured now on all ranks", name_of(compute)));
  return peak;
}

}  // namespace host
