"""What streamlit runs; in a folder of its own, for it takes the modules of a folder ``pages`` beside it for scripts."""

from rl_doctor.app.main import main

main()
