// What the scheduler says of the time that this job has left. It is asked again and again, in a thread of its own: squeue
// and qstat may take long or never answer, and limits are changed while jobs run.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace train {

// "23:30:00", "1-12:00:00", "90:00" (minutes and seconds) in seconds; -1 if it is no such text. SLURM's and PBS's
// forms.
double seconds_of(const std::string& text);

class JobTime {
 public:
  // Asks for the first time. What has not answered after `patience_s` is killed and counts as no answer.
  explicit JobTime(double patience_s = 30);
  ~JobTime();  // waits for nobody's answer

  struct Answer {
    int64_t number = 0;    // of answers so far, 0 = none yet
    double end_s = 0;      // when the job ends, on base::now_s(); 0: the scheduler does not tell
    std::string source;    // "slurm", "pbs"; "": this is no job of a scheduler
    bool in_time = true;   // false: it did not answer
  };
  Answer latest() const;
  // The same after the first answer, or so many seconds.
  Answer first(double seconds) const;

 private:
  void work();
  Answer ask(bool again);
  std::string output_of(const std::string& command);
  bool quits() const;

  const double patience_s_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Answer answer_;
  bool quit_ = false, in_time_ = true;
  std::thread thread_;
};

}  // namespace train
