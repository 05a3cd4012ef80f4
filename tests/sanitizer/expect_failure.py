"""usage: expect_failure.py TEXT PROGRAM [ARGUMENT...]: succeeds if PROGRAM fails and prints TEXT."""
import subprocess
import sys

done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
if done.returncode == 0 or sys.argv[1] not in done.stdout:
    sys.exit(f"{done.stdout}\nended with {done.returncode}; expected a failure that says '{sys.argv[1]}'")
print(f"ended with {done.returncode} and said '{sys.argv[1]}', as it must")
