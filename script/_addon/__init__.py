"""What script/generate_addon writes into config/addon."""
