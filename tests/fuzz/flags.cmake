# The compiler's flags under preset fuzz. Not with the checks that libstdc++ headers break by design (unsigned overflow).
target_compile_options(trainer_flags INTERFACE -O1 -gline-tables-only -fno-omit-frame-pointer -Wno-unknown-pragmas
                       -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow -fno-sanitize-recover=all)
target_compile_definitions(trainer_flags INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
target_link_options(trainer_flags INTERFACE -fsanitize=address,undefined)
