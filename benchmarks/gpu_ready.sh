# Sourced by the scripts for a GPU: a device, this package and what it needs are there, or one sentence says what is not.
python -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "torch sees no GPU here: run this on a machine with one")'
# the folder hooks becomes stabilitylens.hooks by installation only, so that an import from this folder proves nothing
python -c 'import stabilitylens.hooks' 2>/dev/null \
  || python -m pip install --quiet --no-deps --no-build-isolation -e . 2>/dev/null \
  || python -m pip install --quiet --no-deps -e .
for needed in stabilitylens.hooks pytest rich "$@"; do
  python -c "import $needed" 2>/dev/null || { echo "$needed can't be imported: pip install -e .[torch,triton,hf,test], then run this again" >&2; exit 1; }
done
